"""What tests of programs that use Mesh are given."""
