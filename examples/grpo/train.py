"""Reinforcement learning with GRPO, while a process of each mesh is killed.

A small transformer learns to add two digits from nothing but rewards. Generators sample groups of
answers, scorers verify them, and trainers learn from the latest ones, all at the same time. The
weights are sharded over the trainers; generators copy the latest version out of their memory. Mesh
restarts killed processes, and a trainer restores its shard from a copy on another trainer.
"""

import asyncio
import itertools
import statistics
import threading
import time
from collections import deque
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import torch
from torch import Tensor, distributed, nn
from torch.distributions import Categorical
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from mesh_core import Actor, SupervisionError, concurrent_endpoint, current_rank, endpoint, span
from mesh_core.testing import kill_proc
from mesh_jobs import Job, LocalJob
from mesh_rdma import (
    Layout,
    RDMABuffer,
    RDMAError,
    Shard,
    VersionedBuffer,
    VersionedReader,
    plan_reshard,
)
from mesh_telemetry import Telemetry
from mesh_tensor.training import FaultTolerantTraining

PROCS = {"trainers": 2, "generators": 2, "scorers": 2, "buffer": 1}
TRAINERS = PROCS["trainers"]
SYMBOLS, PROMPT, ANSWER = "0123456789+=", 4, 2  # the right answer to "4+9=" is "13"
WIDTH, HEADS, WEIGHTS = 32, 4, 13_740
PROMPTS, GROUP = 16, 16  # a batch has several prompts, each with a group of answers
# Batches in the replay buffer, their maximum age in versions, and unscored batches of a generator.
BATCHES_MAX, AGE_MAX, UNSCORED_MAX = 16, 8, 2
LEARNING_RATE, CLIP, NORM_MAX, ENTROPY = 3e-3, 0.2, 0.5, 0.1
GOAL, STEPS_MAX, REPORT_STEPS = 0.9, 2000, 50

RESTARTED = "select count(distinct proc) as count from actors where incarnation > 0"
# The trainers, unless they wait longer than they train; then the mesh that works the longest.
BOTTLENECK = """
    with spent as (
        select display_name as mesh, name, sum(e.timestamp_us - s.timestamp_us) as us
        from spans s join span_events e using (process_id, id) join actors a on a.id = s.actor_id
        group by mesh, name)
    select mesh from spent where name <> 'wait' and (mesh = 'trainers') = (
    select sum(case name when 'wait' then -us else us end) > 0 from spent where mesh = 'trainers')
    order by us desc limit 1"""


class Policy(nn.Module):
    """A transformer that predicts the next symbol; its parameters are views of `weights`."""

    def __init__(self, weights: Tensor) -> None:
        torch.set_num_threads(1)  # the processes share the CPU cores
        torch.manual_seed(0)
        super().__init__()
        self.symbol = nn.Embedding(len(SYMBOLS), WIDTH)
        self.place = nn.Parameter(torch.randn(PROMPT + ANSWER, WIDTH) / WIDTH)
        self.block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, len(SYMBOLS))
        weights[:WEIGHTS] = parameters_to_vector(self.parameters()).detach()
        vector_to_parameters(weights[:WEIGHTS], self.parameters())

    def forward(self, symbols: Tensor) -> Categorical:
        mask = nn.Transformer.generate_square_subsequent_mask(symbols.shape[1])
        hidden = self.symbol(symbols) + self.place[: symbols.shape[1]]
        return Categorical(logits=self.head(self.norm(self.block(hidden, mask, is_causal=True))))


SHARD = -(-WEIGHTS // TRAINERS)  # weights of a trainer; the last shard is padded
TRAINED, USED = (Layout.of([TRAINERS * SHARD], 4, [size], [Shard(0)]) for size in (TRAINERS, 1))
RESHARD = plan_reshard(TRAINED, USED)


@dataclass(eq=False)
class Batch:
    """Groups of answers that one version of the policy has sampled, with a row per answer."""

    version: int
    symbols: Tensor  # prompts and answers
    log_probs: Tensor  # of the symbols of the answers
    rewards: Tensor | None = None


class ReplayBuffer(Actor):
    """Keeps batches and the readers of the weights. After a restart, it gets both again."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque(maxlen=BATCHES_MAX)
        self.readers: dict[int, VersionedReader] = {}
        self.changed = asyncio.Condition()

    @concurrent_endpoint
    async def put(self, batch: Batch) -> list[VersionedReader]:
        """Add a batch, and return where the shards of the weights are."""
        async with self.changed:
            self.batches.append(batch)
            self.changed.notify_all()
        return [self.readers[rank] for rank in sorted(self.readers)]

    @concurrent_endpoint
    async def take(self, rank: int, version: int, reader: VersionedReader) -> Batch:
        """Return the latest batch to the trainer that has published this version."""
        self.readers[rank] = reader
        async with self.changed:
            while not self.batches or self.batches[-1].version < version - AGE_MAX:
                await self.changed.wait()
            return self.batches.pop()


class Scorer(Actor):
    def __init__(self, buffer: ReplayBuffer) -> None:
        self.buffer = buffer

    @endpoint
    def score(self, batch: Batch) -> tuple[float, list[VersionedReader]]:
        """Return the mean reward, and where the newest weights are."""
        with span("score"):
            texts = ["".join(SYMBOLS[one] for one in row) for row in batch.symbols.tolist()]
            batch.rewards = torch.tensor([self.reward(text) for text in texts])
        return batch.rewards.mean().item(), self.buffer.put.call_one(batch).get()

    def reward(self, text: str) -> float:
        """Return 1 for the right answer, and a quarter for one right digit of two."""
        right = f"{int(text[0]) + int(text[2]):02}"
        digits = sum(one == other for one, other in zip(text[PROMPT:], right, strict=True))
        return 1.0 if digits == ANSWER else digits / 4


class Generator(Actor):
    def __init__(self, scorers: Scorer, digits: int) -> None:
        self.scorers, self.digits = scorers, digits
        weights = torch.zeros(TRAINERS * SHARD)
        self.policy, self.weights = Policy(weights), RDMABuffer(weights)
        self.version, self.unscored = 0, deque()
        torch.seed()

    @endpoint(idempotent=True)
    def generate(self, number: int) -> float | None:
        """Sample a batch; return the mean reward of an earlier one, unless it was lost."""
        with span("generate"), torch.no_grad():
            operands = torch.randint(self.digits, (PROMPTS, 2)).tolist()
            prompts = [[SYMBOLS.index(one) for one in f"{a}+{b}="] for a, b in operands]
            symbols = torch.tensor(prompts).repeat_interleave(GROUP, 0)
            log_probs = []
            for _ in range(ANSWER):
                chances = self.policy(symbols)
                sampled = chances.sample()
                log_probs.append(chances.log_prob(sampled)[:, -1:])
                symbols = torch.cat([symbols, sampled[:, -1:]], 1)
            batch = Batch(self.version, symbols, torch.cat(log_probs, 1))
            self.unscored.append(self.scorers.score.choose(batch))
        if len(self.unscored) <= UNSCORED_MAX:
            return None
        try:
            reward, readers = self.unscored.popleft().get()
        except SupervisionError:
            return None  # the scorer or the replay buffer has died
        if len(readers) == TRAINERS:
            self.update(readers)
        return reward

    def update(self, readers: list[VersionedReader]) -> None:
        """Copy the newest version; keep the weights while a trainer is being restarted."""
        with span("update"), suppress(RDMAError), ExitStack() as held:
            shards = [held.enter_context(reader.hold()) for reader in readers]
            versions = {shard.step for shard in shards}
            if len(versions) == 1 and versions != {self.version}:
                RESHARD.run([shard.buffer for shard in shards], [self.weights]).get()
                self.version = versions.pop()


class PolicyTraining:
    """The training of one rank, which has a shard of the weights and of the optimizer's state."""

    def __init__(self, buffer: ReplayBuffer) -> None:
        self.rank, self.buffer = current_rank().rank, buffer
        self.weights = torch.zeros(TRAINERS, SHARD)
        self.policy = Policy(self.weights.view(-1))
        self.shard = nn.Parameter(self.weights[self.rank].clone())
        self.optimizer = torch.optim.AdamW([self.shard], LEARNING_RATE, eps=1e-5)

    def join(self) -> None:
        self.published = VersionedBuffer(4 * SHARD)

    def train_step(self, step: int) -> None:
        distributed.all_gather(list(self.weights), self.shard.detach())
        self.published.publish(self.shard.detach(), step=step)
        with span("wait"):
            batch = self.next_batch(step)
        with span("train"):
            gradients = torch.autograd.grad(self.loss(batch), list(self.policy.parameters()))
            whole = torch.zeros_like(self.weights)
            whole.view(-1)[:WEIGHTS] = parameters_to_vector(gradients) / TRAINERS
            distributed.all_reduce(whole)
            self.shard.grad = whole[self.rank] * min(1.0, NORM_MAX / whole.norm().item())
            self.optimizer.step()

    def next_batch(self, version: int) -> Batch:
        while True:
            try:
                return self.buffer.take.call_one(self.rank, version, self.published).get()
            except SupervisionError:
                time.sleep(0.05)  # the replay buffer is being restarted

    def loss(self, batch: Batch) -> Tensor:
        """Return the clipped objective of GRPO, with the mean of a group as its baseline."""
        rewards = batch.rewards.view(PROMPTS, GROUP)
        advantages = rewards - rewards.mean(1, keepdim=True)
        advantages = (advantages / (rewards.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        chances = self.policy(batch.symbols[:, :-1])
        log_probs = chances.log_prob(batch.symbols[:, 1:])[:, -ANSWER:]
        ratio = (log_probs - batch.log_probs).exp()
        gain = torch.min(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages).mean()
        return -gain - ENTROPY * chances.entropy()[:, -ANSWER:].mean()

    def state_dict(self) -> dict:
        return {"shard": self.shard.detach(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict) -> None:
        self.shard.data.copy_(state["shard"])
        self.optimizer.load_state_dict(state["optimizer"])


class Pipeline:
    """All meshes, on the hosts of a job. The generators run until `close`."""

    def __init__(self, job: Job, digits: int = 10) -> None:
        hosts = job.state()
        self.procs = procs = {
            name: hosts[name].spawn_procs({"gpus": count // hosts[name].size()}).flatten("rank")
            for name, count in PROCS.items()
        }
        buffer = procs["buffer"].spawn("buffer", ReplayBuffer, restart="permanent")
        scorers = procs["scorers"].spawn("scorers", Scorer, buffer, restart="permanent")
        self.generators = procs["generators"].spawn(
            "generators", Generator, scorers, digits, restart="permanent"
        )
        self.training = FaultTolerantTraining(
            procs["trainers"], PolicyTraining, buffer, is_sharded=True, stall_timeout_s=60
        )
        self.rewards, self.is_closed = [], False
        self.generating = threading.Thread(target=self.generate, daemon=True)
        self.generating.start()

    def generate(self) -> None:
        for reward in self.generators.generate.map(itertools.count()):  # to idle generators
            self.rewards += [] if reward is None else [reward]
            if self.is_closed:
                break

    def reward(self) -> float:
        """Return the mean reward of the last batches."""
        return statistics.fmean(self.rewards[-40:] or [0.0])

    def close(self) -> None:
        self.is_closed = True
        self.generating.join()


def main() -> None:
    # The job determines where the meshes run. For SLURM or Kubernetes only this line changes.
    job = LocalJob(list(PROCS), context="grpo")
    began, victims = time.monotonic(), list(PROCS)
    with Telemetry() as telemetry:
        pipeline = Pipeline(job)
        for step in range(REPORT_STEPS, STEPS_MAX + 1, REPORT_STEPS):
            pipeline.training.run(step)
            print(f"step {step}: reward {pipeline.reward():.2f}", flush=True)
            if victims:  # kill a process while the next steps run
                threading.Timer(0.2, kill_proc, [pipeline.procs[victims.pop(0)], 0]).start()
            elif pipeline.reward() > GOAL:
                break
        pipeline.close()
        restarted = telemetry.query(RESTARTED).table["count"][0]
        bottleneck = telemetry.query(BOTTLENECK).table["mesh"][0]
    first, last = statistics.fmean(pipeline.rewards[:40]), pipeline.reward()
    print(f"reward {first:.2f} at first, {last:.2f} at last, {time.monotonic() - began:.0f} s")
    print(f"{restarted} processes were killed and restarted; bottleneck: {bottleneck}")
    assert first < 0.2 < 0.8 < last


if __name__ == "__main__":
    main()

# prints:
#   reward 0.0... at first, 0... at last, ... s
#   4 processes were killed and restarted; bottleneck: ...
