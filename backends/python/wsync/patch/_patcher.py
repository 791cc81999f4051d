"""The stages of a patch in one worker: wsync_patch(stage=...) of vLLM's extension and of SGLang's plug-in."""
from __future__ import annotations

import logging
import time
from collections import deque
from typing import Any, Callable, Optional, Protocol

import torch

from ..read._weights import open as open_weights
from . import _proofs
from ._plan import Plan
from ._recorder import Recorder
from ._recording import Recording, Unpatchable
from ._versions import KEYS
from ._versions import identity as version_at

log = logging.getLogger("wsync.patch")


class Engine(Protocol):
    """What a patcher needs of the worker that it is in."""

    rank: int

    def serving(self) -> dict[str, Any]:
        """{"path", "model", "version", "run", "digest", "broken"}; None where it is not known."""

    def is_served(self, path: str) -> bool:
        """Whether the version at the path is the one that is served: by its manifest, also where its files are gone; else by the folder.
        OSError, ValueError."""

    def identify(self, path: str) -> Any:
        """What to note if the version at the path is served. OSError, ValueError."""

    def served(self) -> Any:
        """The same for what is served now."""

    def note(self, identity: Any) -> None:
        """What identify returned is served from now on. Does not raise."""

    def refuses_modules(self, names: set[str]) -> Optional[str]:
        """Why the modules of these tensors cannot be loaded alone; None: they can."""

    def load_modules(self, path: str, names: set[str]) -> None:
        """Loads modules by these tensors of the version, by the engine's own loader."""

    def forget_answers(self) -> None:
        """Drops what the worker keeps of the weights before: caches of embeddings, merged adapters."""

    def agree(self, error: Optional[str]) -> Optional[str]:
        """The same on all ranks: None if none has an error."""


class Proved:
    """The recording of a watched load of the version at path, after the proofs; why: for what reason there is none. Raises nothing."""

    def __init__(self, recorder: Recorder, model: Any, path: str):
        self.recording: Optional[Recording] = None
        begun = time.monotonic()
        try:
            if recorder.failed:
                raise Unpatchable(recorder.failed)
            found = Recording(recorder, model)
            with open_weights(path, "torch") as weights:
                found.loses(_proofs.differing(found, weights), "its memory is not what the file has")
            for name, why in _proofs.unheard(found, model).items():
                found.loses([name], why)
        except Exception as e:  # whatever a model has that was not foreseen
            self.why = f"the load could not be recorded: {_message(e)}"
            log.warning("versions are loaded whole: %s", self.why)
            return
        self.recording = found
        self.why = ""
        if found.patchable < 0.5:
            name, reason = next(iter(sorted(found.whole.items())), ("all", "nothing was copied"))
            self.why = f"only {found.patchable:.0%} of the elements can be patched, not {name}: {reason}"
        log.info("%.1f%% of the elements can be patched; proved in %.2f s", 100 * found.patchable, time.monotonic() - begun)


class Patcher:
    """Used by the worker's thread. Whoever loads the model otherwise says so by `forget`."""

    def __init__(self, engine: Engine):
        self._engine = engine
        self._recording: Optional[Recording] = None
        self._why = "no load was recorded in this worker"
        self._stale: Optional[str] = None  # why it is not known what is in memory
        self._half_done: Optional[str] = None  # the same, until this plan's put or undo is done
        self._plan: Optional[Plan] = None
        self._put = False
        self._abandoned: deque[str] = deque(maxlen=16)  # plans that were dropped before they came
        self.asleep = False

    # --- what others tell ---
    def adopt(self, proved: Proved) -> None:
        """What is known of the load that filled the model."""
        self._recording, self._why = proved.recording, proved.why

    def forget(self, stale: Optional[str] = None) -> None:
        """The model is loaded by somebody else. stale: what is in memory now is no version that is known."""
        self._drop()
        self._stale, self._half_done = stale, None

    def _drop(self) -> None:
        self._plan, self._put = None, False

    def serves(self, path: str) -> bool:
        """Whether the version at the path is what is served, with nothing wrong about it."""
        try:
            return self._refusal() is None and self._engine.is_served(path)
        except (OSError, ValueError, TypeError):
            return False

    # --- stages ---
    def stage(self, stage: str, plan: Optional[str] = None, target: Optional[str] = None, base: Optional[str] = None) -> dict[str, Any]:
        """The answer of one stage; raises nothing."""
        stages: dict[str, Callable[[], dict[str, Any]]] = {
            "state": self.state, "prepare": lambda: self._prepare(plan, target, base), "put": lambda: self._write(plan, "put"),
            "undo": lambda: self._write(plan, "undo"), "drop": lambda: self._end(plan), "verify": self._verify}
        found = stages.get(stage) if isinstance(stage, str) else None
        said = found() if found else {"ok": False, "why": f"there is no stage {str(stage)[:40]!r}: there are {', '.join(stages)}", "wrote": False}
        return {"rank": self._engine.rank, "stage": stage, **said}

    def state(self) -> dict[str, Any]:
        why, recording = self._refusal(), self._recording
        serving = self._engine.serving()
        return {"ready": why is None, "why": why or "", "patchable": recording.patchable if recording else 0.0,
                "whole": recording.all_whole_modules() if recording else [], "plan": self._plan.identity if self._plan else None, "put": self._put,
                "served": {key: serving.get(key) for key in ("model", "version", "run", "digest")}}

    def _refusal(self) -> Optional[str]:
        """Why nothing can be patched now."""
        if self._recording is None or self._why:
            return self._why
        if self.asleep:
            return "the engine is asleep: its weights are not in memory"
        broken = self._engine.serving().get("broken")
        if broken or self._stale or self._half_done:
            return broken or self._stale or self._half_done
        moved = self._recording.moved()
        return f"{len(moved)} parameters are elsewhere since they were recorded, such as {moved[0]}" if moved else None

    def _prepare(self, identity: Any, target: Any, base: Any) -> dict[str, Any]:
        made, error = None, None
        try:
            made = self._new_plan(identity, target, base)
        except Exception as e:  # of any kind: the other ranks must learn of it
            error = _message(e)
        agreed = self._engine.agree(error)
        if agreed or made is None:
            return {"ok": False, "why": agreed or error, "changed": 0, "elements": 0, "bytes": 0, "whole": []}
        self._plan = made
        return {"ok": True, "why": "", "changed": made.changed, "elements": made.elements, "bytes": made.bytes, "whole": made.modules}

    def _new_plan(self, identity: Any, target: Any, base: Any) -> Plan:
        if not all(isinstance(text, str) and text for text in (identity, target, base)):
            raise Unpatchable("prepare wants plan=, target= and base=")
        if identity in self._abandoned:
            raise Unpatchable(f"plan {identity[:80]} was dropped before it came")
        if self._put:
            raise Unpatchable(f"plan {self._plan.identity if self._plan else ''} was put and is not dropped yet")
        self._drop()
        why = self._refusal()
        if why:
            raise Unpatchable(why)
        assert self._recording is not None
        if not self._engine.is_served(base):
            serving = self._engine.serving()
            raise Unpatchable(f"{base} is not what is served: that is {serving.get('path')} (version {serving.get('version')}@{serving.get('run')})")
        with open_weights(target, "torch") as weights:
            layout, versions = weights.layout(), {target: version_at(weights)}
        readable = self._compare_some(base)
        plan = Plan(identity, self._recording, target, base, layout, torch.get_num_threads())
        why = None
        if plan.modules:
            why = self._engine.refuses_modules(plan.tensors) if readable else f"{base} cannot be read, for the way back"
        if why:
            raise Unpatchable(f"{plan.modules[0]} cannot be patched ({self._recording.whole[min(plan.tensors)]}), nor loaded alone: {why}")
        try:
            plan.check()
        except OSError as e:
            raise Unpatchable(f"memory is not the base's: {e}") from None
        plan.identities = {"put": self._engine.identify(target), "undo": self._engine.served()}
        served = self._engine.serving()
        plan.versions = {**versions, base: {key: served[key] for key in KEYS}}
        _refuse_another(plan, target)
        return plan

    def _compare_some(self, base: str) -> bool:
        """Compares some of memory with the base's files; false where there are none, as on a mount that keeps one copy."""
        assert self._recording is not None
        try:
            old = open_weights(base, "torch")
        except FileNotFoundError:
            return False
        with old:
            found = _proofs.differing(self._recording, old, sampled=True)
        if found:
            self._stale = f"{found[0]} has another value in memory than the file of what is served: it was loaded by others since"
            raise Unpatchable(self._stale)
        return True

    def _write(self, identity: Any, what: str) -> dict[str, Any]:
        """put and undo."""
        held = self._plan.identity if self._plan else None
        if held is None or held != identity:  # the other ranks may have one: they must not wait
            error = f"there is no plan {str(identity)[:80]}: {held or 'none'} is held"
            return {"ok": False, "why": self._engine.agree(error) or error, "wrote": False, "seconds": 0.0}
        plan, start, wrote, error = self._plan, time.monotonic(), self._put, None
        assert plan is not None
        try:
            if what == "put":
                why = self._refusal()
                if why:
                    raise Unpatchable(why)
                self._put = wrote = True
                plan.put()
                self._load_modules(plan, plan.target)
            elif self._put:
                if self.asleep:
                    raise Unpatchable("the engine is asleep: its weights are not in memory")
                plan.undo()
                self._load_modules(plan, plan.base)
            _synchronize()
        except Exception as e:  # of any kind, as above
            error = _message(e)
            log.exception("plan %s: %s failed", identity, what)
        agreed = self._engine.agree(error)
        if agreed is None:
            self._put = what == "put"
            if wrote:
                self._engine.note(plan.identities[what])
                self._engine.forget_answers()
            self._half_done = None
        elif wrote:
            self._half_done = f"{what} of plan {identity} failed: {agreed}"
        return {"ok": agreed is None, "why": agreed or "", "seconds": round(time.monotonic() - start, 6), "wrote": wrote}

    def _load_modules(self, plan: Plan, path: str) -> None:
        if plan.tensors:
            self._engine.load_modules(path, plan.tensors)
            _refuse_another(plan, path)

    def _end(self, identity: Any) -> dict[str, Any]:
        """A plan that was put stays what is served. One that is not here may be on its way: whoever asked for it has gone on."""
        if isinstance(identity, str) and (self._plan is None or self._plan.identity != identity):
            self._abandoned.append(identity[:200])
        if self._plan is not None and self._plan.identity != identity:
            return {"ok": False, "why": f"there is no plan {str(identity)[:80]}: {self._plan.identity} is held"}
        self._drop()
        return {"ok": True, "why": ""}

    def _verify(self) -> dict[str, Any]:
        differs: list[str] = []
        error: Optional[str] = None
        try:
            why, path = self._refusal(), self._engine.serving().get("path")
            if why or self._recording is None or path is None:
                raise Unpatchable(why or "it is not known where the files of what is served are")
            with open_weights(path, "torch") as weights:
                differs = sorted(_proofs.differing(self._recording, weights))
        except Exception as e:  # a stage raises nothing
            error = _message(e)
        if differs:
            self._stale = f"{differs[0]} is not what the file of the served version has"
        return {"ok": not differs and error is None, "why": error or self._stale or "", "differs": differs}


def _refuse_another(plan: Plan, path: str) -> None:
    """A name such as 42 is another run's once that has published 42: what was read there since is then not the plan's."""
    with open_weights(path, "torch") as weights:
        found = version_at(weights)
    if found != plan.versions[path]:
        raise Unpatchable(f"{path} became another version meanwhile: {found['version']}@{found['run']}")


def _message(e: Exception) -> str:
    return str(e) if isinstance(e, Unpatchable) else f"{type(e).__name__}: {e}"


def _synchronize() -> None:
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is not None and accelerator.is_available():
        accelerator.synchronize()
