"""Domains: the corruptions, each with a severity, that an image goes through."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from spear_hf.data.corruptions import CORRUPTIONS, resolve_corruptions
from spear_hf.errors import DataError
from spear_hf.utils.validation import first_of

CLEAN_NAMES = ("clean", "none")


@dataclass(frozen=True)
class Domain:
    """Corruptions that are applied one after another; without any, the image stays clean.

    >>> from spear_hf.data.domains import Domain
    >>> str(Domain((("fog", 2.0), ("gaussian_noise", 1.5)))), str(Domain())
    ('fog/2+gaussian_noise/1.5', 'clean')

    Args:
        steps: (corruption, severity) pairs, in order of application; severity in (0, 5], fractions allowed.
    """

    steps: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        """ "gaussian_noise/5", "fog/2+gaussian_noise/1.5", or "clean"; `parse_domain` reads it."""
        return "+".join(f"{name}/{severity:g}" for name, severity in self.steps) or "clean"

    @property
    def is_clean(self) -> bool:
        """True if nothing is applied."""
        return not self.steps


CLEAN = Domain()


def parse_domain(text: str, severity: float) -> Domain:
    """The Domain that `text` describes; `severity` is used for a corruption without "/severity".

    >>> from spear_hf.data.domains import parse_domain
    >>> parse_domain("fog+snow/1", severity=5)
    Domain(steps=(('fog', 5.0), ('snow', 1.0)))

    Raises:
        DataError: a severity that is not a number in (0, 5].
    """
    if text.strip() in CLEAN_NAMES:
        return CLEAN
    steps = []
    for part in text.split("+"):
        name, slash, own = part.strip().partition("/")
        steps.append((name, _checked_severity(own if slash else severity)))
    return Domain(tuple(steps))


def _checked_severity(severity: float | str) -> float:
    """`severity` as a float in (0, 5], or a DataError."""
    try:
        value = float(severity)
    except ValueError:
        value = float("nan")
    if not 0 < value <= 5:
        raise DataError(f"severity={severity!r} is not in (0, 5]; pass 1 to 5 or a fraction, or corruptions='clean'")
    return value


def resolve_domains(
    corruptions: str | Iterable[str],
    severity: float | Sequence[float],
    resolve: Callable[[list[str]], Iterable[str]] = resolve_corruptions,
) -> tuple[Domain, ...]:
    """The domains that a user names, in order and without repetition; of several severities, all for each corruption.

    >>> from spear_hf.data.domains import resolve_domains
    >>> [str(domain) for domain in resolve_domains("clean, fog, frost/3+fog/1", 5)]
    ['clean', 'fog/5', 'frost/3+fog/1']

    Args:
        corruptions: "all", "extra", a group, "clean", names, or compositions; one string with commas or several.
        severity: of the names without a severity; in (0, 5].
        resolve: expands and checks names; a source of corrupted images has its own.

    Raises:
        DataError: an unknown corruption, a severity outside (0, 5], or no corruption.
    """
    words = corruptions.split(",") if isinstance(corruptions, str) else list(corruptions)
    severities = list(severity) if isinstance(severity, Sequence) else [severity]
    found: list[Domain] = []
    for word in filter(None, (word.strip() for word in words)):
        is_plain = word not in CLEAN_NAMES and not {"/", "+"} & set(word)
        names = list(resolve([word])) if is_plain else [word]
        found += [parse_domain(name, s) for name in names for s in severities]
    for name in {name for domain in found for name, _ in domain.steps}:
        resolve([name])
    if not found:
        resolve(words)  # raises, and lists what is allowed
    return tuple(dict.fromkeys(found))


def resolve_held_domains(
    corruptions: str | Iterable[str], severity: float | Sequence[float], held: Sequence[Domain], name: str
) -> tuple[Domain, ...]:
    """As `resolve_domains`, for a source of corrupted images: only the domains that it holds are allowed.

    "all" is the 15, or everything the source holds if it holds none of the 15 (ImageNet-C-bar, ImageNet-3DCC).

    >>> from spear_hf.data.domains import Domain, resolve_held_domains
    >>> resolve_held_domains("all", 5, held=[Domain((("sparkles", 5.0),))], name="ImageNet-C-bar")
    (Domain(steps=(('sparkles', 5.0),)),)

    Raises:
        DataError: a domain that the source does not hold.
    """
    names = list(dict.fromkeys(corruption for domain in held for corruption, _ in domain.steps))

    def resolve(words: list[str]) -> list[str]:
        if words == ["all"] and not set(names) & set(CORRUPTIONS):
            return names
        return [found for word in words for found in ([word] if word in names else resolve_corruptions([word]))]

    domains = resolve_domains(corruptions, severity, resolve)
    if absent := [str(domain) for domain in domains if domain not in held]:
        raise DataError(
            f"{name} does not hold {first_of(absent, 4)}; pass corruptions= and severity= from {_summary(held)}"
        )
    return domains


def _summary(held: Sequence[Domain]) -> str:
    """ "fog/1,2,3,4,5, snow/5": the domains of a source in one line."""
    levels: dict[str, list[str]] = {}
    for domain in held:
        for corruption, severity in domain.steps:
            levels.setdefault(corruption, []).append(f"{severity:g}")
    words = [f"{corruption}/{','.join(severities)}" for corruption, severities in levels.items()]
    return ", ".join([*words, *(["clean"] if CLEAN in held else [])])
