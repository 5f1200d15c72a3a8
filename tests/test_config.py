import pytest

from spear_hf.config import SpearConfig
from spear_hf.errors import ConfigError


def test_json_round_trip_is_equal_and_byte_stable() -> None:
    config = SpearConfig(boundaries=(0, "layer1.1"), tau=0.2, num_groups=6)
    again = SpearConfig.from_json(config.to_json())
    assert again == config
    assert again.to_json() == config.to_json()


@pytest.mark.parametrize("given", ["0,1", ["0", "1"], [0, 1], (0, 1)])
def test_depths_from_a_command_line_are_numbers(given: object) -> None:
    assert SpearConfig(boundaries=given).boundaries == (0, 1)  # pyright: ignore[reportArgumentType]


def test_names_and_paths_stay_strings() -> None:
    assert SpearConfig(boundaries="stem,layer1.1").boundaries == ("stem", "layer1.1")


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("alpha", 1.5, r"alpha=1.5 is not allowed; alpha is a number in \[0, 1\]; the default is"),
        ("tau", float("nan"), r"tau=nan is not allowed; tau is a number in \[0, 1\]"),
        ("learning_rate", -1, r"learning_rate is a number in \[0, 100\]"),
        ("learning_rate", 10**400, "learning_rate=1000.* is not allowed"),
        ("anchor_growth", 0.5, r"a number in \[1, 100\]"),
        ("domain_jump", -1, "a finite number of at least 0"),
        ("adam_beta1", 1.0, r"adam_beta1=1.0 is not allowed; adam_beta1 is a number in \[0, 1\)"),
        ("adam_beta2", 1, r"adam_beta2 is a number in \[0, 1\)"),
        ("hard_gate", "no", "hard_gate='no' is not allowed; hard_gate is True or False; the default is True"),
        ("hard_gate", 0, "hard_gate is True or False"),
        ("steps", 0, "steps is a whole number from 1 to 1,000"),
        ("steps", 10**30, "steps=10{30} is not allowed"),
        ("adapt_every", 10**30, "a whole number of at least 1, at most 1,000,000,000"),
        ("boundaries", (True, 2), "boundaries=.* is not allowed"),
        ("num_groups", 2.5, "num_groups is a whole number"),
        ("alpha", "half", "alpha='half' is not allowed"),
        ("alpha", True, "alpha=True is not allowed"),
        ("boundaries", [], "boundaries=.* is not allowed"),
        ("boundaries", (0, 0), "names one twice"),
        ("stem", "conv", "stem='conv' is not known; allowed are auto"),
    ],
)
def test_a_wrong_value_says_what_is_allowed(field: str, value: object, allowed: str) -> None:
    with pytest.raises(ConfigError, match=allowed):
        SpearConfig(**{field: value})  # pyright: ignore[reportArgumentType]


def test_the_papers_configuration_takes_changes() -> None:
    config = SpearConfig.paper(tau=0.1, memory_images=32)
    assert (config.memory_images, config.likelihood_ratio, config.tau) == (32, 0.0, 0.1)
    with pytest.raises(ConfigError, match="did you mean tau"):
        SpearConfig.paper(tua=0.1)


def test_an_unknown_key_is_reported_with_the_nearest_field() -> None:
    with pytest.raises(ConfigError, match="no field 'lerning_rate'; did you mean learning_rate"):
        SpearConfig.from_dict({"lerning_rate": 0.1})


@pytest.mark.parametrize("text", ["[]", "{", "3"])
def test_text_that_is_no_json_object_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        SpearConfig.from_json(text)
