"""Environments of reinforcement learning with random observations, for code whose package for them is not installed.

They have the interface of gymnasium: spaces, `reset` and `step`, and the attributes that wrappers read.
"""

from __future__ import annotations

import importlib.util
import re
from typing import Any, ClassVar

import torch

from runtime_check import spaces

OBSERVED = 4  # numbers in an observation
STEPS = 10  # of an episode
#: Names of environments whose actions are numbers.
CONTINUOUS = re.compile(r"Pendulum|Continuous|Ant|Hopper|Cheetah|Walker|Swimmer|Humanoid|Reacher|Pusher|Fetch|Hand")
#: Those that show a screen; wrappers that change it leave it as it is, small and with the frames before it.
GAMES, SCREEN = re.compile(r"NoFrameskip|^ALE/|Breakout|Pong|Atari|SpaceInvaders|Seaquest"), (4, 84, 84)
WHERE = "gymnasium.core"


def named(name: str) -> Any:
    """The function or class of this name; one of an unknown name is a wrapper that changes nothing."""
    return NAMED.get(name, Wrapper)



class Space:
    """Both an observation and an action space, where there is no numpy to make better ones of."""

    shape, n, high, low = (OBSERVED,), 2, [1.0] * OBSERVED, [-1.0] * OBSERVED

    def sample(self) -> int:
        return 0


class Env:
    """Base of environments."""

    metadata: ClassVar[dict[str, Any]] = {"render_modes": []}
    render_mode: str | None = None
    reward_range = (-float("inf"), float("inf"))
    spec: Any = None
    observation_space: Any = None
    action_space: Any = None

    def __class_getitem__(cls, item: object) -> Any:
        return cls  # `Env[Observation, Action]`

    @property
    def unwrapped(self) -> Any:
        return self

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any: ...

    def step(self, action: Any) -> Any:
        raise NotImplementedError

    @property
    def np_random(self) -> Any:
        """Where environments draw their random numbers."""
        import numpy

        return numpy.random.default_rng(0)

    def get_action_meanings(self) -> list[str]:
        """What Atari games call their actions."""
        return ["NOOP", "FIRE", "RIGHT", "LEFT"]

    def has_wrapper_attr(self, name: str) -> bool:
        return hasattr(self, name)

    def get_wrapper_attr(self, name: str) -> Any:
        return getattr(self, name)

    def set_wrapper_attr(self, name: str, value: Any, **options: Any) -> None:
        setattr(self, name, value)

    def seed(self, *args: object) -> None: ...

    def render(self, *args: object) -> None: ...

    def close(self) -> None: ...

    def __enter__(self) -> Env:
        return self

    def __exit__(self, *details: object) -> None: ...


class Wrapper(Env):
    """An environment around another one."""

    def __init__(self, env: Any, *args: object, **options: object) -> None:
        self.env = env

    def __getattribute__(self, name: str) -> Any:
        """What the wrapper itself has not set is that of the environment inside."""
        own = object.__getattribute__(self, "__dict__")
        inherited = name in ("observation_space", "action_space", "metadata", "render_mode", "spec", "reward_range")
        if inherited and name not in own and "env" in own:
            return getattr(own["env"], name)
        return object.__getattribute__(self, name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped

    def reset(self, **options: Any) -> Any:
        return self.env.reset(**options)

    def step(self, action: Any) -> Any:
        return self.env.step(action)


class Environment(Env):
    """Four observed numbers, and two actions or one number between -1 and 1; an episode takes ten steps."""

    spec = type("Spec", (), {"reward_threshold": 100.0, "max_episode_steps": STEPS, "id": "Example-v1"})()

    def __init__(self, name: object = "", *args: object, **options: Any) -> None:
        self.steps = 0
        self.continuous = bool(CONTINUOUS.search(str(name)))
        self.render_mode = options.get("render_mode")
        if importlib.util.find_spec("numpy") is None:
            self.observation_space = self.action_space = Space()
            return
        self.ale = Lives()
        self.observation_space = spaces.Box(-1.0, 1.0, (OBSERVED,))
        self.action_space = spaces.Box(-1.0, 1.0, (1,)) if self.continuous else spaces.Discrete(2)
        if GAMES.search(str(name)):
            self.observation_space, self.action_space = spaces.Box(0, 255, SCREEN, "uint8"), spaces.Discrete(4)

    def _look(self) -> Any:
        if isinstance(self.observation_space, Space):
            return torch.rand(OBSERVED).tolist()
        return self.observation_space.sample()

    def reset(self, *args: object, **options: object) -> tuple[Any, dict[str, Any]]:
        self.steps = 0
        return self._look(), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        return self._look(), 1.0, self.steps >= STEPS, False, {}


class Lives:
    """The counter of lives of Atari games."""

    def lives(self) -> int:
        return 0


class Vector(Env):
    """Several environments at once: arrays with a row for each. Takes functions that make them, or one name."""

    def __init__(self, makers: Any, *args: Any, num_envs: int = 0, **options: Any) -> None:
        named = not isinstance(makers, (list, tuple))
        self.envs = [Environment(makers) for _ in range(num_envs or 1)] if named else [make() for make in makers]
        first = self.envs[0]
        self.num_envs, self.spec = len(self.envs), first.spec
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space, self.action_space = (self._all(space) for space in (self.single_observation_space,
                                                                                   self.single_action_space))

    def _all(self, space: Any) -> Any:
        """The space of one value for each environment."""
        import numpy

        if isinstance(space, spaces.Discrete):
            return spaces.MultiDiscrete([space.n] * self.num_envs)
        low, high = (numpy.stack([bound] * self.num_envs) for bound in (space.low, space.high))
        return spaces.Box(low, high, low.shape, space.dtype)

    def reset(self, **options: Any) -> Any:
        import numpy

        return numpy.stack([env.reset()[0] for env in self.envs]), {}

    def step(self, actions: Any) -> Any:
        import numpy

        seen, rewards, ended, cut = [], [], [], []
        for env, action in zip(self.envs, actions, strict=True):
            observation, reward, terminated, truncated, _ = env.step(action)
            seen.append(env.reset()[0] if terminated or truncated else observation)
            rewards.append(reward)
            ended.append(terminated)
            cut.append(truncated)
        return numpy.stack(seen), numpy.array(rewards), numpy.array(ended), numpy.array(cut), {}


class Continuous(Environment):
    """An environment whose action is a number."""

    def __init__(self, *args: object, **options: Any) -> None:
        super().__init__("Continuous", **options)


NAMED: dict[str, Any] = {
    "make": Environment, "SyncVectorEnv": Vector, "AsyncVectorEnv": Vector, "make_vec": Vector, "Env": Env,
    **dict.fromkeys(("Wrapper", "ObservationWrapper", "RewardWrapper", "ActionWrapper"), Wrapper),
}
for _kind in (Env, Wrapper, Vector):
    _kind.__module__ = WHERE
