"""Records behave as data classes do where the core relies on it."""

from __future__ import annotations

import pytest

from kernmill.ir import field, record, replace


@record()
class Open:
    """Can be changed."""

    name: str
    count: int = 3
    parts: list[int] = field(default_factory=list[int])

    @property
    def double(self) -> int:
        """A property beside the fields."""
        return 2 * self.count


@record(frozen=True)
class Frozen:
    """Can be hashed."""

    name: str
    at: tuple[int, ...] = ()
    make: list[int] = field(default_factory=list[int])


@record(frozen=True)
class Single:
    """One field."""

    name: str


@record(eq=False)
class Itself:
    """Equal to itself only."""

    name: str


def test_arguments_by_place_and_by_name() -> None:
    one = Open("a", count=4)
    assert (one.name, one.count, one.parts, one.double) == ("a", 4, [], 8)
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'name'"):
        Open()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unexpected keyword argument 'nme'"):
        Open(nme="a")  # type: ignore[call-arg]


def test_defaults_are_not_shared() -> None:
    one, other = Open("a"), Open("a")
    one.parts.append(1)
    assert other.parts == []
    assert Frozen("a").make is not Frozen("a").make


def test_equality_is_of_values_and_of_one_class() -> None:
    assert Open("a") == Open("a")
    assert Open("a") != Open("b")
    other: object = Itself("a")
    assert Single("a") != other
    assert Itself("a") != Itself("a")
    assert Single("a") == Single("a")
    assert Frozen("a", (1,)) != Frozen("a", (2,))


def test_hash() -> None:
    assert hash(Single("a")) == hash(Single("a"))
    assert len({Single("a"), Single("a"), Single("b")}) == 2
    assert len({Itself("a"), Itself("a")}) == 2
    with pytest.raises(TypeError, match="unhashable"):
        hash(Open("a"))


def test_only_fields_can_be_set() -> None:
    one = Open("a")
    one.name = "b"
    assert one.name == "b"
    with pytest.raises(AttributeError):
        one.other = 1  # type: ignore[attr-defined]


def test_repr_names_the_fields() -> None:
    assert repr(Open("a", 1)) == "Open(name='a', count=1, parts=[])"
    assert repr(Single("a")) == "Single(name='a')"


def test_replace_gives_another() -> None:
    one = Frozen("a", (1,))
    assert replace(one, at=(2,)) == Frozen("a", (2,))
    assert one.at == (1,)
    with pytest.raises(TypeError, match="unexpected keyword argument 'nme'"):
        replace(one, nme="b")


def test_patterns_match_by_place() -> None:
    match Frozen("a", (1,)):
        case Frozen(name, at):
            assert (name, at) == ("a", (1,))
