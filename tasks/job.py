"""One artifact of a stage: found in the store, or made and stored, with its page in the Prefect UI."""

import json
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import BaseModel

from tasks.errors import PreconditionFailed
from tasks.inuse import refs_of
from tasks.pages.pages import stage_page
from tasks.pages.parts import StoredObject
from tasks.pages.report import StageReport
from tasks.recipe.plan import STAGE_VERSIONS, Kind, Plan
from tasks.recipe.recipe import Recipe
from tasks.recipe.settings import load_settings
from tasks.recipe.target import TargetModel, resolve_target
from tasks.stage import Done, open_artifacts
from tasks.store.artifact import ArtifactRef
from tasks.store.artifacts import Artifacts
from tasks.store.lease import hold_lease
from tasks.store.manifest import Account, Cost, FileEntry, Manifest, PartManifest
from tasks.store.provenance import collect_provenance
from tasks.store.retention import why_not_needed

PART_SECONDS = "seconds"


class Job:
    """One artifact of a stage: found in the store, or made in a scratch folder and stored."""

    def __init__(self, kind: Kind, recipe: Recipe, plan: Plan) -> None:
        """Look up where everything is; start the clock."""
        self.kind: Kind = kind
        self.recipe = recipe
        self.plan = plan
        self.settings = load_settings()
        self.artifacts = open_artifacts(self.settings)
        self.ref = ArtifactRef(kind=kind, fingerprint=plan.fingerprint(kind))
        self.logger = get_run_logger()
        self._started = self._lap_began = time.monotonic()
        self._earlier_s = 0.0

    @property
    def scratch(self) -> Path:
        """Return the folder for this artifact's working files."""
        folder = self.settings.scratch_dir / self.kind / self.ref.fingerprint[:16]
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def files(self) -> Path:
        """Return the folder where the artifact's own files are written, and where a later stage looks for them."""
        return self._files_of(self.ref)

    @property
    def seconds(self) -> float:
        """Return the seconds since the stage began."""
        return time.monotonic() - self._started

    def lap(self) -> float:
        """Return the seconds since the stage began or since the last lap: what one part took."""
        began, self._lap_began = self._lap_began, time.monotonic()
        return self._lap_began - began

    def parts(self) -> dict[str, PartManifest]:
        """Return the parts that earlier attempts stored; what they took counts as cost of the artifact."""
        found = self.artifacts.parts(self.ref)
        self._earlier_s = sum(float(part.facts.get(PART_SECONDS, 0.0)) for part in found.values())
        return found

    def put_part(self, name: str, files: tuple[FileEntry, ...], facts: dict[str, Any]) -> PartManifest:
        """Record a part whose files are stored; a later attempt goes on after it."""
        taken = {PART_SECONDS: round(self.lap(), 3)}
        part = PartManifest(name=name, fingerprint=self.ref.fingerprint, files=files, facts={**facts, **taken})
        self.artifacts.put_part(self.ref, part)
        return part

    def target(self) -> TargetModel:
        """Return the target on disk."""
        return resolve_target(self.recipe.target, self.settings)

    def input(self, kind: Kind) -> ArtifactRef:
        """Return the reference of an artifact that this stage reads."""
        return ArtifactRef(kind=kind, fingerprint=self.plan.fingerprint(kind))

    def fetch(self, kind: Kind, names: Iterable[str] | None = None) -> Path:
        """Return a local folder with an input's files, each checked against its manifest."""
        ref = self.input(kind)
        return self.artifacts.fetch(ref, self._files_of(ref), list(names) if names is not None else None)

    def fetch_listed(self, kind: Kind, pattern: str) -> list[Path]:
        """Return local paths of an input's files that its manifest lists and whose names match, in name order."""
        manifest = self.artifacts.manifest(self.input(kind))
        names = sorted(entry.path for entry in manifest.files if fnmatchcase(entry.path, pattern))
        folder = self.fetch(kind, names)
        return [folder / name for name in names]

    def _files_of(self, ref: ArtifactRef) -> Path:
        folder = self.settings.scratch_dir / ref.kind / ref.fingerprint[:16] / "files"
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def reused(self) -> Done | None:
        """Return the result when the artifact is there already, and say so in the UI."""
        manifest = self.artifacts.find(self.ref)
        if manifest is None:
            return None
        self.logger.info("reused %s: made %s from the same request, inputs and target", self._uri(""), manifest.created)
        self._show(manifest, reused=True)
        return Done(ref=self.ref, reused=True, seconds=self.seconds, facts=manifest.facts)

    def not_needed(self) -> Done | None:
        """Return the result when the artifact is gone and the only one that is made from it is finished."""
        reason = why_not_needed(self.artifacts, self.plan, self.kind)
        if reason is None:
            return None
        self.logger.info("%s %s", self._uri(""), reason)
        self._show_page(not_needed_report(self.kind, reason))
        return Done(ref=self.ref, reused=True, seconds=self.seconds, facts={}, not_needed=reason)

    def put_json(self, name: str, value: BaseModel | dict[str, Any]) -> FileEntry:
        """Store a small JSON file of the artifact."""
        text = value.model_dump_json(indent=1) if isinstance(value, BaseModel) else json.dumps(value, indent=1)
        return self.artifacts.put_bytes(self.ref, name, text.encode("utf-8"))

    def stored_log(self, name: str) -> list[FileEntry]:
        """Store a log of the scratch folder with the artifact; none when nothing was started."""
        path = self.scratch / name
        return [self.artifacts.put(self.ref, name, path)] if path.is_file() else []

    def finish(
        self,
        files: Iterable[FileEntry],
        facts: dict[str, Any],
        *,
        account: Account | None = None,
        tokens: int = 0,
        on_gpu: bool = False,
    ) -> Done:
        """Write the manifest, which makes the artifact exist, and its page in the UI."""
        listed = tuple(files)
        written = sum(entry.size_bytes for entry in listed)
        seconds = self._earlier_s + self.seconds
        cost = Cost(seconds=seconds, gpu_seconds=seconds if on_gpu else 0.0, tokens=tokens, bytes_written=written)
        link = self.plan.links[self.kind]
        engine = self.plan.inputs.engine
        manifest = Manifest(
            kind=self.kind,
            fingerprint=self.ref.fingerprint,
            stage_version=STAGE_VERSIONS[self.kind],
            inputs=link.inputs,
            files=listed,
            account=account,
            cost=cost,
            provenance=collect_provenance(self.recipe.model_dump(mode="json"), engine),
            facts=facts,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        self.artifacts.finish(manifest)
        self.logger.info("made %s in %.1f s", self._uri(""), self.seconds)
        self._show(manifest, reused=False)
        return Done(ref=self.ref, reused=False, seconds=self.seconds, facts=facts)

    def _uri(self, name: str) -> str:
        return self.artifacts.store.uri(self.ref.prefix + name)

    def _show(self, manifest: Manifest, *, reused: bool) -> None:
        self._show_page(stage_report(manifest, self.artifacts, reused=reused))

    def _show_page(self, report: StageReport) -> None:
        create_markdown_artifact(
            stage_page(report, self.settings.s3_browser_url),
            key=f"stage-{self.kind}",
            description=f"What went into {self.kind} and what came out",
        )


def found_or_made(kind: Kind, recipe: Recipe, plan: Plan, make: Callable[[Job], Done]) -> Done:
    """Return the artifact of this plan from the store, or make it while holding its lease.

    Of two runs that want the same artifact one makes it; the other waits and then finds it. Hidden states that are
    gone are not made again when the draft that was made from them is finished.
    """
    job = Job(kind, recipe, plan)
    if done := job.reused() or job.not_needed():
        return done
    uses = refs_of(plan.links[kind].inputs)
    with ExitStack() as held:
        try:
            held.enter_context(hold_lease(job.artifacts.store, job.ref, uses=uses, wait_s=0))
        except PreconditionFailed as busy:
            job.logger.info("another run makes %s, waiting for it: %s", job.ref, busy)
            held.enter_context(hold_lease(job.artifacts.store, job.ref, uses=uses))
        return job.reused() or make(job)  # another run may have finished it since the first look


def _fact(value: Any) -> str | int | float | None:
    return value if isinstance(value, str | int | float | None) else json.dumps(value)


def not_needed_report(kind: str, reason: str) -> StageReport:
    """Return what the UI shows of an artifact that is gone and need not be made again."""
    return StageReport(name=kind, cost=Cost(seconds=0), not_needed=reason)


def stage_report(manifest: Manifest, artifacts: Artifacts, *, reused: bool) -> StageReport:
    """Return what the UI shows of an artifact."""
    prefix = ArtifactRef(kind=manifest.kind, fingerprint=manifest.fingerprint).prefix
    because = f"made {manifest.created} from the same request, inputs and target ({manifest.fingerprint[:12]})"
    return StageReport(
        name=manifest.kind,
        cost=manifest.cost,
        account=manifest.account,
        reused_because=because if reused else None,
        facts={key: _fact(value) for key, value in manifest.facts.items()},
        objects=tuple(
            StoredObject(entry.path, artifacts.store.uri(prefix + entry.path), entry.size_bytes)
            for entry in manifest.files
        ),
    )
