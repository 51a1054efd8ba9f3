"""Reinforcement learning with GRPO: generators sample while the trainer learns.

A generator samples a group of actions for a state, the scorer rewards them, and the replay buffer
keeps them. The trainer reinforces the actions that are better than the mean of their group, and the
generators read its new weights from its memory. All of them work at the same time: the program only
starts a step of each. The policy is a small network that learns to choose a number for a state.
"""

import asyncio
import random
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.distributions import Categorical

from mesh_core import (
    Actor,
    concurrent_endpoint,
    current_rank,
    endpoint,
    patch_actor,
    this_host,
)
from mesh_rdma import RDMABuffer

STATES, ACTIONS, GROUP, GENERATORS = 4, 4, 16, 2
STEPS, BATCH = 60, 4


@dataclass
class Group:
    """The actions that a version of the policy sampled for one state."""

    version: int
    state: int
    actions: Tensor
    log_probs: Tensor
    rewards: Tensor | None = None


def policy() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(STATES, 16), nn.Tanh(), nn.Linear(16, ACTIONS))


class ReplayBuffer(Actor):
    """Keeps the newest groups, and lets the trainer wait until there are enough."""

    def __init__(self, size: int) -> None:
        self.groups: list[Group] = []
        self.size = size
        self.random = random.Random(0)
        self.changed = asyncio.Condition()

    @concurrent_endpoint
    async def put(self, group: Group) -> None:
        async with self.changed:
            self.groups = [*self.groups, group][-self.size :]
            self.changed.notify_all()

    @concurrent_endpoint
    async def sample(self, count: int) -> list[Group]:
        async with self.changed:
            await self.changed.wait_for(lambda: len(self.groups) >= count)
            return self.random.sample(self.groups, count)


class Scorer(Actor):
    """Rewards the action that equals the state."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    @endpoint
    async def score(self, group: Group) -> float:
        group.rewards = (group.actions == group.state).float()
        await self.buffer.put.call_one(group)
        return group.rewards.mean().item()


class Generator(Actor):
    def __init__(self, weights: dict[str, RDMABuffer], scorer: Scorer) -> None:
        self.policy = policy()
        self.weights, self.scorer = weights, scorer
        self.version = 0
        torch.manual_seed(1 + current_rank().rank)  # each generator samples other actions

    @endpoint
    async def update(self, version: int) -> None:
        own = self.policy.state_dict()
        reads = [buffer.read_into(own[name]) for name, buffer in self.weights.items()]
        await asyncio.gather(*reads)
        self.version = version

    @endpoint
    async def generate(self) -> float:
        """Return the mean reward of a group."""
        state = int(torch.randint(STATES, ()))
        with torch.no_grad():
            chances = Categorical(logits=self.policy(torch.tensor(state)))
        actions = chances.sample((GROUP,))
        group = Group(self.version, state, actions, chances.log_prob(actions))
        return await self.scorer.score.call_one(group)


class Trainer(Actor):
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.policy = policy()
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=0.05)
        self.buffer = buffer
        self.version = 0

    @endpoint
    def weights(self) -> dict[str, RDMABuffer]:
        return {name: RDMABuffer(value) for name, value in self.policy.state_dict().items()}

    @endpoint
    async def step(self) -> int:
        """Update the policy, and return its version."""
        groups = await self.buffer.sample.call_one(BATCH)
        states = torch.tensor([group.state for group in groups])
        actions = torch.stack([group.actions for group in groups])
        old = torch.stack([group.log_probs for group in groups])
        rewards = torch.stack([group.rewards for group in groups])
        advantages = (rewards - rewards.mean(1, keepdim=True)) / (
            rewards.std(1, keepdim=True) + 1e-4
        )
        new = Categorical(logits=self.policy(states)[:, None]).log_prob(actions)
        ratio = (new - old).exp()
        loss = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.version += 1
        return self.version


class Expert(Generator):
    """Knows which action is right: it tests the other actors without a policy."""

    @endpoint
    async def generate(self) -> float:
        state = int(torch.randint(STATES, ()))
        group = Group(self.version, state, torch.full((GROUP,), state), torch.zeros(GROUP))
        return await self.scorer.score.call_one(group)


async def run(steps: int) -> list[float]:
    """Train for some steps, and return the mean reward of each."""
    learning = this_host().spawn_procs({"gpus": 1})
    generating = this_host().spawn_procs({"gpus": GENERATORS})
    async with learning, generating:
        buffer = learning.spawn("buffer", ReplayBuffer, 2 * BATCH)
        scorer = learning.spawn("scorer", Scorer, buffer)
        trainer = learning.spawn("trainer", Trainer, buffer)
        weights = await trainer.weights.call_one()
        generators = generating.spawn("generators", Generator, weights, scorer)
        for _ in range(BATCH // GENERATORS):
            await generators.generate.call()  # the first step needs a batch
        rewards = []
        for _ in range(steps):
            scores, version = await asyncio.gather(
                generators.generate.call(), trainer.step.call_one()
            )
            await generators.update.call(version)  # no step writes to the weights now
            rewards.append(sum(scores.values()) / GENERATORS)
        return rewards


rewards = asyncio.run(run(STEPS))
first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
print(f"the mean reward rises from {first:.2f} to {last:.2f}")
assert first < 0.6 < 0.9 < last

with patch_actor(Generator, Expert):
    print("rewards of an expert:", asyncio.run(run(3)))

# prints:
#   the mean reward rises from 0... to ...
#   rewards of an expert: [1.0, 1.0, 1.0]
