"""What a program computes in one lane: unpack what a call is given, ask the agent, pack what it
answers. `engine.program` adds the lane axis and compiles these functions."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

from ace import replay
from ace.agents import Agent
from ace.engine.fresh import Fresh
from ace.engine.lanes import like
from ace.engine.messages import Message, Question, blank_message, blank_question
from ace.engine.packing import SMALL, Packed, Packing
from ace.method.types import Lane
from ace.settings import keys

BLOCK = 64  # steps for which random actions are drawn at once
ROWS = 1024  # rows of the replay that one call reads


class Packings:
    """The packing of every tree that a compiled function takes or returns."""

    def __init__(self, fresh: Fresh):
        self._fresh = fresh
        self.lane = Packing(fresh.lane(fresh.setups[0]), math.inf)
        self.memory = Packing(fresh.memory, math.inf)
        self.message = Packing(blank_message(*fresh.sizes), math.inf)
        self.question = Packing(blank_question(fresh.sizes[0]), math.inf)

    @functools.cached_property
    def learner(self) -> Packing:
        """How the agent's state is packed; the first lane's learner is drawn to see its leaves."""
        return Packing(self._fresh.first_learner, self._small)

    @functools.cached_property
    def acting(self) -> Packing:
        """How the part of the state that acting reads is packed."""
        part = jax.eval_shape(self._fresh.agent.acting_part, like(self._fresh.first_learner))
        return Packing(part, self._small)

    @property
    def _small(self) -> int:
        of_all, of_one = SMALL
        return min(of_all // len(self._fresh.setups), of_one)


class OneLane:
    """The functions of one lane; trees come in and go out packed."""

    def __init__(self, agent: Agent, packings: Packings):
        self.agent, self.packings = agent, packings

    def act(self, lane: Packed, learner: Packed, memory: Packed, message: Packed):
        """Act on an observation; the agent resets its memory if the observation is an episode's
        first."""
        x: Message = self.packings.message.unpack(message)
        one: Lane = self.packings.lane.unpack(lane)
        acting = self.agent.acting_part(self.packings.learner.unpack(learner))
        key = keys.key(one.seed, "plan", x.agent_step)
        before = self.packings.memory.unpack(memory)
        obs = x.transition.obs
        action, after = self.agent.act(one, acting, before, obs, x.first, x.agent_step, key, True)
        return action, self.packings.memory.pack(after)

    def act_eval(self, lane: Packed, acting: Packed, memory: Packed, question: Packed):
        """Act in a lane's evaluation episodes."""
        one: Lane = self.packings.lane.unpack(lane)
        tree = self.packings.acting.unpack(acting)

        def act(memory: Packed, packed: Packed):
            x: Question = self.packings.question.unpack(packed)
            key = jax.random.fold_in(keys.key(one.seed, "eval_plan", x.agent_step), x.eval_step)
            key = jax.random.fold_in(key, x.episode)
            before, first = self.packings.memory.unpack(memory), x.eval_step == 0
            step = x.agent_step
            action, after = self.agent.act(one, tree, before, x.obs, first, step, key, False)
            return action, self.packings.memory.pack(after)

        return jax.vmap(act)(memory, question)

    def act_policy(self, lane: Packed, acting: Packed, question: Packed) -> jax.Array:
        """Act by the policy alone in a lane's evaluation episodes."""
        assert self.agent.act_policy is not None
        obs = self.packings.question.unpack(question).obs
        one, tree = self.packings.lane.unpack(lane), self.packings.acting.unpack(acting)
        return self.agent.act_policy(one, tree, obs)

    def value(self, lane: Packed, acting: Packed, question: Packed, action: jax.Array) -> jax.Array:
        """What the critics expect from observations and actions."""
        assert self.agent.value is not None
        obs = self.packings.question.unpack(question).obs
        one, tree = self.packings.lane.unpack(lane), self.packings.acting.unpack(acting)
        return self.agent.value(one, tree, obs, action)

    def survey(
        self, lane: Packed, acting: Any, states: jax.Array, obs: jax.Array, action: jax.Array
    ) -> tuple[jax.Array | None, jax.Array | None]:
        """Values [P] of states and the error of predictions, where the agent has them."""
        one: Lane = self.packings.lane.unpack(lane)
        act, value, predict = (
            self.agent.act_policy,
            self.agent.value,
            self.agent.prediction_error,
        )
        values = error = None
        if act and value:
            # One row of states after the other: the activations of all would fill a small device.
            values = jax.lax.map(lambda x: value(one, acting, x, act(one, acting, x)), states)
            values = values.mean(0)
        if predict:
            error = predict(one, acting, obs, action)
        return values, error

    def act_seed(self, lane: Packed, agent_step: jax.Array) -> jax.Array:
        """Uniform random actions [BLOCK, A] for the steps from `agent_step` on."""
        one: Lane = self.packings.lane.unpack(lane)

        def draw(step: jax.Array) -> jax.Array:
            key = keys.key(one.seed, "seed_action", step)
            shape = one.action_mask.shape
            return jax.random.uniform(key, shape, minval=-1.0, maxval=1.0) * one.action_mask

        return jax.vmap(draw)(agent_step + jnp.arange(BLOCK))

    def add(self, store: replay.Replay, message: Packed) -> replay.Replay:
        """Store a transition."""
        x: Message = self.packings.message.unpack(message)
        return replay.add(store, x.transition)

    def rows(self, store: replay.Replay, start: jax.Array) -> dict[str, jax.Array]:
        """The rows of the replay from `start` on, by the names of their arrays."""
        slots = (start + jnp.arange(ROWS)) % store.obs.shape[0]
        return {name: getattr(store, name)[slots] for name in replay.STEPS}

    def update(
        self, lane: Packed, learner: Packed, store: replay.Replay, message: Packed
    ) -> tuple[Packed, replay.Replay, jax.Array]:
        """One update; metrics [M] in the order of the agent's names."""
        x: Message = self.packings.message.unpack(message)
        one, state = self.packings.lane.unpack(lane), self.packings.learner.unpack(learner)
        state, store, row = self._updated(one, x, state, store)
        return self.packings.learner.pack(state), store, row

    def updates(
        self, lane: Packed, learner: Packed, store: replay.Replay, message: Packed, count: jax.Array
    ) -> tuple[Packed, replay.Replay, jax.Array]:
        """Several updates in one call: each call costs the host time."""
        x: Message = self.packings.message.unpack(message)
        one, row = self.packings.lane.unpack(lane), jnp.zeros(len(self.agent.metrics))
        state, store, row = jax.lax.fori_loop(
            0,
            count,
            lambda _, made: self._updated(one, x, *made[:2]),
            (self.packings.learner.unpack(learner), store, row),
        )
        return self.packings.learner.pack(state), store, row

    def _updated(self, lane: Lane, x: Message, state: Any, store: replay.Replay) -> tuple:
        # Faults may have dropped all episodes of a lane.
        active = x.active & (replay.total(store.tree) > 0)
        state, store, metrics = self.agent.update(lane, state, store, x.agent_step, active)
        row = [jnp.asarray(metrics[name], jnp.float32) for name in self.agent.metrics]
        return state, store, jnp.stack(row) if row else jnp.zeros(0)

    def acting(self, learner: Packed) -> Any:
        """A copy of what acting reads, as a tree."""
        # Copy the arrays: the learner's own are donated to the next update.
        part = self.agent.acting_part(self.packings.learner.unpack(learner))
        return jax.tree.map(jnp.copy, part)

    def pack_acting(self, acting: Any) -> Packed:
        """What acting reads, packed for many calls."""
        return self.packings.acting.pack(acting)
