"""The `verbs` transport: one-sided reads and writes over InfiniBand and RoCE."""
