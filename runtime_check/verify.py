"""`torchlint --fix --verify`: run what a finding claims on the code before and after its fix.

A fix is verified when the claim is confirmed before and not after, and nothing else changed that it promises
to keep. It fails when the claim still holds after it, or when the results differ although they must not.
Everything else cannot be verified: no claim, code that could not be run, a symptom that did not show.
"""
from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from runtime_check.evidence import Outcome, Verdict
from runtime_check.main import ConfirmError, require_fork
from runtime_check.plan import SECONDS, Case, claim_of, from_finding, translated
from runtime_check.pool import Pool, PoolError
from torchlint import claims
from torchlint.builtin import every_rule
from torchlint.findings import Finding, Safety
from torchlint.results import Made, Proof, Report
from torchlint.runner import Progress

#: Claims about memory: what the code computes must stay the same, bit for bit.
SAME = (claims.GraphGrows, claims.MemoryGrows, claims.CycleLeaks)
#: Claims about warnings and hooks: likewise, where the fix does not say that it changes what runs.
UNFINISHED = "to its end"  # how probes say that the flagged line raised
SAME_IF_SAFE = (*SAME, claims.HooksSkipped, claims.Warns)


class VerifyError(RuntimeError):
    """What keeps fixes from being verified at all; one line."""


@dataclass(frozen=True)
class Trial:
    """The experiments about one fix, by their numbers in the pool."""

    finding: Finding
    before: Case
    after: Case | None  # the claim on the fixed code; None where the claim compares two programs anyway
    same: Case | None  # whether anything else changed


def verify(
    report: Report, findings: Sequence[Finding], *, roots: Sequence[os.PathLike[str]] = (), jobs: int = 1,
    seconds: float = SECONDS, progress: Progress | None = None,
) -> list[Made]:
    """What running the code shows of the fix of each finding. VerifyError if nothing can be run here."""
    trials: list[Trial] = []
    told: list[Made] = []
    folders = tuple(os.fspath(root) for root in roots)
    known = {rule.meta.code: rule.claim for rule in every_rule()}
    for finding in findings:
        claim = claim_of(finding, known.get(finding.code))
        others = tuple(one for one in report.findings if one.path == finding.path)
        if claim is None:
            told.append(Made(finding, Proof.UNVERIFIED, "the rule makes no claim that running the code could test"))
            continue
        trial = _trial(report.sources[finding.path].text, finding, claim, others, 3 * len(trials), folders, seconds)
        if trial is None:
            told.append(Made(finding, Proof.UNVERIFIED, "the fix alone cannot be made for a run"))
        else:
            trials.append(trial)
    outcomes = _run(trials, jobs, progress)
    return told + [_judged(trial, outcomes) for trial in trials]


def _trial(
    text: str, finding: Finding, claim: claims.Claim, others: tuple[Finding, ...], key: int, roots: tuple[str, ...],
    seconds: float,
) -> Trial | None:
    """The experiments about a fix; None if it cannot be made alone."""
    path = os.path.abspath(finding.path)
    before = from_finding(finding, claim, text, key, others=others, path=path, roots=roots, seconds=seconds)
    if before.corrected is None or before.correction != "with the fix" or before.corrected == text:
        return None
    if isinstance(claim, claims.Equivalent):
        return Trial(finding, before, None, None)
    fixed = replace(before, key=key + 1, text=before.corrected, flagged=before.mended)
    safe = finding.fix is not None and finding.fix.safety is Safety.SAFE
    equal = isinstance(claim, SAME_IF_SAFE if safe else SAME)
    same = replace(before, key=key + 2, claim=claims.Equivalent()) if equal else None
    return Trial(finding, before, fixed, same)


def _run(trials: Sequence[Trial], jobs: int, progress: Progress | None) -> dict[int, Outcome]:
    """The outcomes: first the claims on the old code, then, where they were confirmed, all the others."""
    outcomes: dict[int, Outcome] = {}
    if not trials:
        return outcomes
    try:
        require_fork()
        with Pool(min(jobs, len(trials))) as pool:
            device = pool.environment.device if pool.environment is not None else "cpu"
            cases = [replace(trial.before, device=device) for trial in trials]
            for done, (case, outcome) in enumerate(pool.run(cases), 1):
                outcomes[case.key] = outcome
                if progress is not None:
                    progress(done, len(cases))
            more = [case for trial in trials if outcomes[trial.before.key].verdict is Verdict.CONFIRMED
                    for case in (trial.after, trial.same) if case is not None]
            for case, outcome in pool.run([replace(case, device=device) for case in more]):
                outcomes[case.key] = outcome
            for case, outcome in pool.run([replace(case, device=device) for case in _otherwise(trials, outcomes)]):
                if outcome.verdict is Verdict.CONFIRMED:  # the fault shows still where it was seen
                    outcomes[case.key] = outcome
    except (ConfirmError, PoolError) as error:
        raise VerifyError(str(error)) from None
    return outcomes


def _otherwise(trials: Sequence[Trial], outcomes: dict[int, Outcome]) -> Iterator[Case]:
    """The fixed code of those whose fault was not seen any more when it was run in another way than before."""
    for trial in trials:
        after = outcomes.get(trial.after.key) if trial.after is not None else None
        if after is None or trial.after is None or after.verdict is not Verdict.REFUTED:
            continue
        how = translated(outcomes[trial.before.key].how, trial.before.text, trial.after.text)
        if how and how != after.how:
            yield replace(trial.after, only=how)


def _judged(trial: Trial, outcomes: dict[int, Outcome]) -> Made:
    """What the outcomes say of a fix."""
    before = outcomes[trial.before.key]
    if trial.after is None:  # the claim is that both programs do the same
        if before.verdict is Verdict.REFUTED:
            return Made(trial.finding, Proof.FAILED, f"the results change: {before.why}")
        if before.verdict is Verdict.CONFIRMED:
            return Made(trial.finding, Proof.VERIFIED, before.why)
        return Made(trial.finding, Proof.UNVERIFIED, before.why)
    if before.verdict is not Verdict.CONFIRMED:
        return Made(trial.finding, Proof.UNVERIFIED, f"before the fix: {before.why}")
    after = outcomes[trial.after.key]
    if after.verdict is Verdict.CONFIRMED and isinstance(trial.before.claim, claims.Warns) and after.why != before.why:
        # Another warning than the one that the fix is to end; the fix did not bring it, it only came second before.
        return Made(trial.finding, Proof.UNVERIFIED, f"after the fix {after.why}")
    if after.verdict is Verdict.CONFIRMED:
        return Made(trial.finding, Proof.FAILED, f"after it still: {after.why}")
    same = outcomes.get(trial.same.key) if trial.same is not None else None
    if same is not None and same.verdict is Verdict.REFUTED:
        return Made(trial.finding, Proof.FAILED, f"something else changes: {same.why}")
    if after.verdict is not Verdict.REFUTED and UNFINISHED in after.why and UNFINISHED not in before.why:
        return Made(trial.finding, Proof.FAILED, f"after the fix: {after.why}")
    if after.verdict is not Verdict.REFUTED:
        return Made(trial.finding, Proof.UNVERIFIED, f"after the fix: {after.why}")
    return Made(trial.finding, Proof.VERIFIED, f"before: {before.why}; after: {after.why}")
