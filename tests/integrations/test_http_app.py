"""The service behind HTTP, in this process."""

import asyncio
import copy
from collections.abc import Awaitable, Callable
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import timm
import torch
from PIL import Image

from spear_hf import SpearConfig, SpearModel, get_spear_model, load_processor
from spear_hf.data.processor import Processor
from spear_hf.integrations.http_app import HttpLimits, create_app
from spear_hf.integrations.serving import BatchedService, StreamClassifier
from spear_hf.learning.spear import Spear

Work = Callable[[httpx.AsyncClient], Awaitable[Any]]


def picture(seed: int = 0, orientation: int = 1, size: tuple[int, int] = (40, 60)) -> bytes:
    """A PNG of noise with an EXIF orientation."""
    pixels = np.random.default_rng(seed).integers(0, 255, (*size, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(pixels).save(file := BytesIO(), "PNG", exif=exif)
    return file.getvalue()


@cache
def drawn() -> tuple[SpearModel, Processor]:
    torch.manual_seed(0)
    base = timm.create_model("test_resnet").eval()
    return get_spear_model(base, SpearConfig(tau=0.0, hard_gate=False, boundaries="all")), load_processor(base)


def classifier(folder: Path) -> StreamClassifier:
    model, processor = drawn()
    return StreamClassifier(Spear(copy.deepcopy(model), streams_folder=folder), processor)


def served(folder: Path, work: Work, *, host: str = "127.0.0.1", **limits: Any) -> Any:
    """What `work` gives, with a client of the application over a classifier whose streams are in `folder`."""

    async def main() -> Any:
        service = BatchedService(classifier(folder), max_wait_s=0.05)
        app = create_app(service, HttpLimits(**limits), host=host)
        transport = httpx.ASGITransport(app=app)  # it does not run the lifespan
        async with service.running(), httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:80") as client:
            return await work(client)

    return asyncio.run(asyncio.wait_for(main(), 120))


def test_a_prediction_has_class_top_5_and_entropy_and_the_stream_learns(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[Any]:
        asked = [await client.post("/predict/hall%203/north", content=picture()) for _ in range(2)]
        asked.append(await client.post("/predict/hall%203/north?learn=false", content=picture()))
        return [*asked, await client.get("/streams")]

    first, second, read, streams = served(tmp_path, work)
    found = first.json()
    assert (found["stream"], found["step"], found["learned"], second.json()["step"]) == ("hall 3/north", 0, True, 1)
    assert found["class"] == found["top"][0]["class"]
    assert [each["probability"] for each in found["top"]] == sorted(
        (each["probability"] for each in found["top"]), reverse=True
    )
    assert 0 < found["entropy"] <= 1
    assert (read.status_code, read.json()["learned"]) == (200, False)
    assert streams.json()["streams"] == [{"name": "hall 3/north", "num_steps": 2, "in_memory": True}]


def test_images_that_arrive_together_are_answered_as_a_step_of_all_of_them(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post(f"/predict/cam-{i}", content=picture(i)) for i in range(4)))

    found = [answer.json() for answer in served(tmp_path, work)]
    alone = classifier(tmp_path / "other")
    x = torch.stack([alone.prepare(picture(i)) for i in range(4)])
    logits = alone.learner.step(x, streams=[f"cam-{i}" for i in range(4)])
    for answer, row in zip(found, logits, strict=True):
        assert answer["probability"] == pytest.approx(float(row.softmax(-1).max()), abs=1e-5)


def test_a_form_and_a_body_are_the_same_image_and_exif_turns_it(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        body = await client.post("/predict/a", content=picture())
        form = await client.post("/predict/b", files={"image": picture()})
        return [body, form, await client.post("/predict/c", content=picture(orientation=6))]

    body, form, turned = served(tmp_path, work)
    assert body.json()["top"] == form.json()["top"]
    assert body.json()["top"] != turned.json()["top"]


def test_a_bad_image_spoils_no_other_of_its_batch(tmp_path: Path) -> None:
    bodies = [picture(0), b"hello", picture(1)[:200], b"", picture(2)]

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        return await asyncio.gather(*(client.post(f"/predict/c{i}", content=b) for i, b in enumerate(bodies)))

    found = served(tmp_path, work)
    assert [answer.status_code for answer in found] == [200, 400, 400, 400, 200]
    assert "no image that can be decoded" in found[1].json()["error"]


@pytest.mark.parametrize("name", ["a%0Ab", "%00", "x" * 1001, ""])
def test_a_bad_stream_name_is_400(tmp_path: Path, name: str) -> None:
    async def work(client: httpx.AsyncClient) -> httpx.Response:
        return await client.post(f"/predict/{name}", content=picture())

    answer = served(tmp_path, work)
    assert answer.status_code == 400
    assert "stream name" in answer.json()["error"]


def test_a_body_and_an_image_that_are_too_large_are_refused(tmp_path: Path) -> None:
    wide = picture(size=(2, 100))

    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        async def chunks() -> Any:  # no Content-Length
            for _ in range(30):
                yield b"x" * 1000

        return [
            await client.post("/predict/a", content=b"x" * 20_001),
            await client.post("/predict/a", content=chunks()),
            await client.post("/predict/a", files={"image": b"x" * 20_001}),
            await client.post("/predict/a", content=wide),
        ]

    found = served(tmp_path, work, max_body_bytes=20_000)
    assert [answer.status_code for answer in found] == [413, 413, 413, 400]


def test_a_loopback_service_refuses_other_hosts_and_origins(tmp_path: Path) -> None:
    asked = [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"origin": "null"}, {}]

    async def work(client: httpx.AsyncClient) -> list[int]:
        return [(await client.get("/health", headers=headers)).status_code for headers in asked]

    assert served(tmp_path, work) == [403, 403, 403, 200]
    assert served(tmp_path, work, host="0.0.0.0") == [200, 200, 200, 200]


def test_a_deleted_stream_is_forgotten_on_disk_too(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[httpx.Response]:
        await client.post("/predict/a", content=picture())
        found = [await client.delete("/streams/a"), await client.delete("/streams/a")]
        return [*found, await client.post("/predict/a?learn=false", content=picture())]

    assert [answer.status_code for answer in served(tmp_path, work)] == [200, 404, 404]
    assert list(tmp_path.glob("*.safetensors")) == []


def test_the_end_saves_and_a_new_service_goes_on_from_it(tmp_path: Path) -> None:
    async def step(client: httpx.AsyncClient) -> int:
        return (await client.post("/predict/a", content=picture())).json()["step"]

    assert [served(tmp_path, step) for _ in range(2)] == [0, 1]


def test_a_state_that_cannot_be_read_stops_its_stream_alone(tmp_path: Path) -> None:
    async def work(client: httpx.AsyncClient) -> list[int]:
        asked = await asyncio.gather(*(client.post(f"/predict/{name}", content=picture()) for name in "ab"))
        return [answer.status_code for answer in asked]

    assert served(tmp_path, work) == [200, 200]
    file = classifier(tmp_path).learner.streams.path("a")
    file.write_bytes(file.read_bytes()[:-100])
    assert served(tmp_path, work) == [500, 200]
