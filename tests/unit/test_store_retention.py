"""Guards the policy of gc: each rule, what is kept, and that what cannot be judged is kept too."""

import pytest

from tasks.recipe.plan import Kind
from tasks.store.artifact import ArtifactRef
from tasks.store.inventory import Inventory, Stored, ref_of
from tasks.store.objects import Entry, Upload
from tasks.store.retention import Policy, Removal, plan_removals
from tests.unit.productions import Production, ref, seen_half_made

DAY = Policy()
NO_PACKAGES = Policy(keep_runs=0)
OLD = 30.0  # hours


def removed(stored: list[Stored], policy: Policy = DAY, *champions: Production) -> list[Removal]:
    fingerprints = frozenset(champion.ref("draft").fingerprint for champion in champions)
    seen = Inventory({found.ref: found for found in stored}, champions=fingerprints)
    return list(plan_removals(seen, policy).removals)


def names(removals: list[Removal]) -> set[tuple[str, str]]:
    return {(removal.rule, removal.what) for removal in removals}


def all_of(production: Production, *left_out: Kind) -> set[tuple[str, str]]:
    return {("unreferenced", str(production.ref(kind))) for kind in production.kinds if kind not in left_out}


@pytest.mark.parametrize("outcome", ["PASS", "WARN"])
@pytest.mark.parametrize("hours", [0, OLD])
def test_hidden_states_go_once_a_draft_of_them_passed(outcome: str, hours: float) -> None:
    made = Production("a", outcome=outcome)
    (removal,) = removed(made.seen(hours))
    assert (removal.rule, removal.ref, removal.num_bytes) == ("states", made.ref("states"), 2000)
    assert str(made.ref("draft")) in removal.why


def test_what_an_interrupted_gc_left_of_hidden_states_goes() -> None:
    made = Production("a")
    left = seen_half_made(made.ref("states"), 0)
    assert names(removed([*made.seen(0, "states"), left])) == {("states", str(made.ref("states")))}


def test_hidden_states_stay_while_no_draft_of_them_passed() -> None:
    assert removed(Production("a").seen(0, "verdict")) == []
    assert removed(Production("a").seen(0, "draft", "verdict")) == []
    assert removed(Production("a", outcome="FAIL").seen(0)) == []
    damaged = Production("a")
    assert removed([*damaged.seen(0, "draft"), damaged.seen_one("draft", 0, "damaged")]) == []


def test_hidden_states_stay_for_a_half_trained_second_draft() -> None:
    made, second = Production("a"), ref("draft", "second")
    first = made.seen(0)
    of_these = seen_half_made(second, 1, made.ref("states"), made.ref("corpus"))
    assert removed([*first, of_these]) == []
    assert removed([*first, seen_half_made(second, 1)]) == [], "what it is made from is not known"
    of_others = seen_half_made(second, 1, ref("states", "other"))
    assert names(removed([*first, of_others])) == {("states", str(made.ref("states")))}
    given_up = seen_half_made(second, OLD, made.ref("states"))
    assert names(removed([*first, given_up])) == {
        ("states", str(made.ref("states"))),
        ("unfinished", str(second)),
    }


def test_unfinished_work_goes_when_nothing_was_added_for_long() -> None:
    old, young = seen_half_made(ref("corpus", "old"), 25), seen_half_made(ref("corpus", "young"), 23)
    assert names(removed([old, young])) == {("unfinished", str(old.ref))}
    assert len(removed([old, young], Policy(older_than_s=0))) == 2
    touched = Stored(old.ref, (*old.objects, Entry(f"{old.ref.prefix}part-1.bin", 1, 60.0)), "unfinished")
    assert removed([touched, young]) == []


def test_a_damaged_artifact_goes_unless_a_champion_needs_it() -> None:
    made = Production("a")
    stored = [*made.seen(OLD, "states", "draft"), made.seen_one("draft", OLD, "damaged")]
    assert ("unfinished", str(made.ref("draft"))) in names(removed(stored, NO_PACKAGES))
    assert removed(stored, NO_PACKAGES, made) == []


def test_what_no_manifest_lists_goes_when_it_is_old() -> None:
    made = Production("a")
    prefix = made.ref("draft").prefix
    more = [Entry(f"{prefix}{name}", 7, 3600 * hours) for name, hours in (("parts/1.json", 25), ("epochs/1.pt", 1))]
    (removal,) = removed([*made.seen(OLD, "states", "draft"), made.seen_one("draft", OLD, "finished", *more)])
    assert (removal.rule, removal.keys, removal.num_bytes) == ("left over", (f"{prefix}parts/1.json",), 7)


def test_the_newest_packages_of_each_target_stay_with_what_they_were_made_from() -> None:
    old, new = Production("old"), Production("new", shared={"corpus": "old"})
    other = Production("other", target="u")
    stored = [*old.seen(50, "states"), *new.seen(40, "states"), *other.seen(60, "states")]
    assert names(removed(stored, Policy(keep_runs=1))) == all_of(old, "states", "corpus")
    assert removed(stored, Policy(keep_runs=2)) == []
    assert len(removed(stored, NO_PACKAGES)) == len(stored)


def test_dependents_go_before_what_they_were_made_from() -> None:
    kinds = [removal.ref.kind for removal in removed(Production("a").seen(OLD, "states"), NO_PACKAGES) if removal.ref]
    assert kinds == ["release", "package", "measurement", "verdict", "draft", "vocabulary", "corpus"]


def test_champions_and_their_predecessors_stay() -> None:
    first, second = Production("first"), Production("second")
    loser = Production("loser", champion=first.ref("draft").fingerprint)
    stored = [found for made in (first, second, loser) for found in made.seen(1000, "states")]
    assert names(removed(stored, NO_PACKAGES, first, second)) == all_of(loser, "states")


def test_what_a_kept_measurement_was_compared_with_stays() -> None:
    champion = Production("champion")
    challenger = Production("challenger", champion=champion.ref("draft").fingerprint)
    stored = [*champion.seen(OLD, "states", "package", "release"), *challenger.seen(0, "states")]
    assert removed(stored, NO_PACKAGES) == []


def test_young_work_stays_with_what_it_is_made_from() -> None:
    made = Production("a")
    corpus = made.seen_one("corpus", OLD)
    assert removed([corpus, seen_half_made(made.ref("states"), 1, made.ref("corpus"))]) == []
    assert removed([corpus, made.seen_one("vocabulary", 1)]) == []
    assert names(removed([corpus, seen_half_made(made.ref("states"), OLD, made.ref("corpus"))])) == {
        ("unfinished", str(made.ref("states"))),
        ("unreferenced", str(made.ref("corpus"))),
    }


def test_when_it_is_not_known_what_is_referred_to_nothing_counts_as_unreferenced() -> None:
    made, newer, unknown = Production("a"), ref("package", "newer"), ref("states", "made from what?")
    stored = {found.ref: found for found in made.seen(OLD, "states")}
    for more, note in (
        (Stored(newer, (Entry(f"{newer.prefix}manifest.json", 5, 1e9),), "newer"), "upgrade"),
        (seen_half_made(unknown, 1), "is not known"),
    ):
        plan = plan_removals(Inventory({**stored, more.ref: more}), NO_PACKAGES)
        assert plan.removals == ()
        assert plan.num_kept == len(stored) + 1
        assert str(more.ref) in plan.notes[0] and note in plan.notes[0]


def test_what_is_in_use_stays_with_what_it_was_made_from() -> None:
    made, half = Production("a"), ref("draft", "half")
    seen = {found.ref: found for found in [*made.seen(1000), seen_half_made(half, 1000)]}
    plan = plan_removals(Inventory(seen, in_use=frozenset({made.ref("states"), half})), NO_PACKAGES)
    assert names(list(plan.removals)) == all_of(made, "corpus", "states")
    assert plan.num_kept == 3


def test_uploads_go_when_they_are_old_and_nobody_needs_them() -> None:
    uploads = tuple(Upload(f"{ref('states', name).prefix}0.bin", name, 3600 * OLD) for name in ("a", "b"))
    young = Upload(f"{ref('states', 'c').prefix}0.bin", "c", 3600.0)
    plan = plan_removals(Inventory({}, frozenset({ref("states", "b")}), uploads=(*uploads, young)), DAY)
    assert [removal.upload for removal in plan.removals] == [uploads[0]]
    assert plan_removals(Inventory({}, uploads=None), DAY).removals == ()


def test_only_prefixes_of_artifacts_are_ours() -> None:
    assert ref_of(f"draft/{'a' * 64}/x") == ArtifactRef(kind="draft", fingerprint="a" * 64)
    for key in ("draft", f"draft/{'a' * 64}", f"draft/{'A' * 64}/x", f"other/{'a' * 64}/x", f"/draft/{'a' * 64}/x"):
        assert ref_of(key) is None
