"""The calibrators of the releases on this node, from their manifests, for this box's CPU class.

A streaming client may name a commit point nobody fitted. Then the nearest fitted one stands in: the
largest below it (more has been seen than it was fitted for), else the smallest above, else the
calibrator of finished answers with half of the risk its threshold tolerates. A stand-in gives no answer up
early: how often it would be wrong to was measured for the commit rule it was fitted for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace

from edge.releases import CLASSIFY
from release.manifest import Calibration, Manifest
from router.calibration import Choice, Fit, InForce, choose, for_choices, in_force, prefix_rule
from router.confidence import FEATURES, Calibrator
from router.label_confidence import LABEL_FEATURES


def calibrator(entry: Calibration, features: tuple[str, ...] = FEATURES) -> Calibrator | None:
    """The manifest's entry as the router's calibrator; None when it was fitted on other features."""
    if entry.features != features:
        return None
    return Calibrator(**{part.name: getattr(entry, part.name) for part in fields(Calibrator)})


def _features(manifest: Manifest) -> tuple[str, ...]:
    """What a confidence in this release's answers is told from."""
    return LABEL_FEATURES if manifest.task == CLASSIFY else FEATURES


class Calibrated:
    """Satisfies edge.ports.Calibrations. Releases are added as they come."""

    def __init__(self, cpu_class: str, manifests: Iterable[Manifest] = ()) -> None:
        self._cpu_class = cpu_class
        self._manifests: dict[str, Manifest] = {}
        self._calibrators: dict[str, tuple[Calibrator, ...]] = {}
        self._cache: dict[tuple[str, int, int | None], InForce] = {}
        self.update(manifests)

    def update(self, manifests: Iterable[Manifest]) -> None:
        """Takes these releases as those on the node."""
        self._manifests = {manifest.id: manifest for manifest in manifests}
        self._calibrators = {
            manifest.id: tuple(
                c for entry in manifest.calibrations if (c := calibrator(entry, _features(manifest))) is not None
            )
            for manifest in self._manifests.values()
        }
        self._cache.clear()

    def add(self, manifest: Manifest) -> None:
        """One more release on the node."""
        if manifest.id not in self._manifests:
            self.update([*self._manifests.values(), manifest])

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        return tuple(self._manifests.values())

    def manifest(self, release: str) -> Manifest | None:
        return self._manifests.get(release)

    def entry(self, release: str, precision: int) -> Calibration | None:
        """The manifest's figures behind the end calibrator in force."""
        manifest = self._manifests.get(release)
        chosen = self.in_force(release, precision, None).end.calibrator
        if manifest is None or chosen is None:
            return None
        return next((entry for entry in manifest.calibrations if entry.id == chosen.id), None)

    def in_force(self, release: str, precision: int, commit_prefix: int | None) -> InForce:
        key = (release, precision, commit_prefix)
        if key not in self._cache:
            if len(self._cache) > 4096:  # commit points are the clients' to name
                self._cache.clear()
            self._cache[key] = self._work_out(release, precision, commit_prefix)
        return self._cache[key]

    def for_choices(self, release: str, precision: int) -> InForce:
        return for_choices(self._calibrators.get(release, ()), precision, self._cpu_class)

    def _work_out(self, release: str, precision: int, commit_prefix: int | None) -> InForce:
        known = self._calibrators.get(release, ())
        force = in_force(known, precision, self._cpu_class, commit_prefix)
        if commit_prefix is None or force.prefix.fit is not Fit.NONE:
            return force
        points = sorted(
            int(c.commit_rule.removeprefix("prefix:"))
            for c in known
            if c.precision == precision and c.commit_rule.startswith("prefix:")
        )
        below = [point for point in points if point <= commit_prefix]
        if points:
            rule = prefix_rule(below[-1] if below else points[0])
            return replace(force, prefix=_patient(choose(known, precision, self._cpu_class, rule)))
        if force.end.calibrator is None:
            return force
        careful = (1 + force.end.threshold) / 2
        return replace(force, prefix=_patient(Choice(force.end.calibrator, careful, force.end.fit)))


def _patient(choice: Choice) -> Choice:
    """The choice without its stop levels."""
    if choice.calibrator is None:
        return choice
    return replace(choice, calibrator=replace(choice.calibrator, stop_levels=()))
