import copy
import inspect
import pickle

import torch
from torch import nn

from spear_hf import get_spear_model
from tests.builders import TwoStages, steered, tiny_vit


def test_the_signature_is_that_of_the_base_and_adapter_names() -> None:
    base = tiny_vit()
    shown = list(inspect.signature(base.forward).parameters)
    assert list(inspect.signature(get_spear_model(base).forward).parameters) == [
        *shown[:-1],
        "adapter_names",
        shown[-1],
    ]


def test_copies_have_the_signature_and_call_themselves() -> None:
    model = steered(TwoStages())
    for again in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert inspect.signature(again.forward) == inspect.signature(model.forward)
        assert again.forward.__self__ is again


def test_the_first_argument_goes_by_its_own_name_too() -> None:
    model, x = steered(TwoStages()), torch.zeros(1, 3, 16, 16)
    assert torch.equal(model(x=x), model(pixel_values=x))


def test_a_replica_for_another_device_calls_itself() -> None:
    model = steered(TwoStages())
    replica = model._replicate_for_data_parallel()
    assert replica.forward.__self__ is replica


def test_a_base_whose_forward_is_no_python_function() -> None:
    base = TwoStages()
    base.forward = type("Compiled", (), {"__call__": lambda _, x: TwoStages.forward(base, x), "__signature__": 3})()
    model = get_spear_model(base)
    assert model(torch.zeros(1, 3, 16, 16)).shape == (1, 10)
    assert isinstance(model, nn.Module)
