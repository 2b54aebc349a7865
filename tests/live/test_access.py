"""API keys, headers, TLS and base paths; keys and passwords stand in no file."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from serving_gym.envs.interface.metrics import FINISHED
from serving_gym.envs.live.access import Access, access_by_url
from serving_gym.envs.live.endpoints import check_endpoints
from serving_gym.envs.live.settings import LiveSettings
from serving_gym.runners import simulate
from serving_gym.runners.configuration.compose import composed
from serving_gym.runners.configuration.schema import SimulateConfig
from tests.live.conftest import MakeBackend, MakeServer, stream_of
from tests.live.fake_server import Behaviour, FakeServer

KEY = "sk-very-secret"


def test_a_key_from_the_environment_or_a_file_goes_to_its_own_server_alone(
    make_server: MakeServer, make_backend: MakeBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    file = tmp_path / "key"
    file.write_text(f"{KEY}-2\n")
    first, second, third = make_server(api_key=KEY), make_server(api_key=f"{KEY}-2"), make_server()
    own = (
        Access(api_key_env="MY_KEY"),
        Access(api_key_file=str(file)),
        Access(headers={"X-Tenant": "team"}),
    )
    alone = {"max_group": 1}
    backend = make_backend(first, second, third, spec=alone, access_of=own)
    backend.reset(stream_of(6))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()
    assert all("Authorization" not in headers and headers["X-Tenant"] == "team" for headers in third.seen)


def test_without_its_key_a_server_is_not_attached_to(
    make_server: MakeServer, make_backend: MakeBackend
) -> None:
    with pytest.raises(
        ValueError, match=r"answers HTTP 401: set backend\.access\.api_key_env or api_key_file"
    ):
        make_backend(make_server(api_key=KEY))


def test_a_base_path(stack: ExitStack, make_backend: MakeBackend) -> None:
    server = stack.enter_context(FakeServer(Behaviour(), base="/team/a"))
    backend = make_backend(server)
    backend.reset(stream_of(2))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()


def test_tls_with_a_certificate_of_ones_own(
    stack: ExitStack, make_backend: MakeBackend, tmp_path: Path
) -> None:
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl")
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    subject = ["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    made = [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *subject, *files]
    subprocess.run(made, check=True, capture_output=True)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(cert))
    context.load_cert_chain(cert, key)
    context.verify_mode = ssl.CERT_REQUIRED
    server = stack.enter_context(FakeServer(Behaviour(), tls=context))
    with pytest.raises(ValueError, match=r"no server answers at https://127.0.0.1.*certificate"):
        make_backend(server)
    access = Access(ca_file=str(cert), client_cert=str(cert), client_key=str(key))
    backend = make_backend(server, access=access)
    backend.reset(stream_of(2))
    backend.run_to_completion()
    assert (backend.results().outcome == FINISHED).all()


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"api_key_env": "A", "api_key_file": "b"}, "name one of them"),
        ({"client_key": "k.pem"}, "client_key needs backend.access.client_cert"),
        ({"headers": {"Authorization": "Bearer x"}}, "headers.Authorization would be written to the records"),
        ({"headers": {"a b": "x"}}, "'a b' is not the name of an HTTP header"),
    ],
)
def test_settings_that_cannot_be(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Access(**wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("access", "said"),
    [
        (Access(api_key_env="NOT_SET"), "names the environment variable 'NOT_SET', which is not set"),
        (Access(api_key_file="/nowhere/key"), "cannot read /nowhere/key"),
        (Access(headers={"X": "$TWO_LINES"}), "headers.X must be one line"),
        (Access(ca_file="/nowhere/ca.pem"), "cannot use /nowhere/ca.pem"),
    ],
)
def test_credentials_that_cannot_be_read(access: Access, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWO_LINES", "a\nHost: b")
    with pytest.raises(ValueError, match=said):
        access.request_headers(), access.tls()


def test_every_endpoint_has_its_access_or_none_has() -> None:
    urls = ("http://a", "http://b")
    assert access_by_url(urls, Access("A"), ()) == dict.fromkeys(urls, Access("A"))
    with pytest.raises(
        ValueError, match=r"access_of must have an entry for each of 2 servers, or none; got 1"
    ):
        access_by_url(urls, Access(), (Access(),))


def test_access_on_the_command_line() -> None:
    words = ["backend=vllm", "backend.endpoints=[http://127.0.0.1:1]"]
    own = ["backend.access_of=[{api_key_env: A},{}]", "+backend.access.headers.X-Token=$TOKEN"]
    settings = composed("simulate", SimulateConfig, [*words, *own]).backend
    assert settings.access_of == (Access("A"), Access())
    assert settings.access == Access(headers={"X-Token": "$TOKEN"})


@pytest.mark.parametrize(
    "url", ["http://me:pw-4711@127.0.0.1:1", "https://pw-4711@127.0.0.1:1/v1", "http://a:1?pw-4711"]
)
def test_no_password_in_an_address(url: str) -> None:
    for check in (lambda: LiveSettings((url,)), lambda: check_endpoints([url], allow_remote=True)):
        with pytest.raises(ValueError, match=r"has a user name or password|has a query") as caught:
            check()
        assert "pw-4711" not in str(caught.value)


def test_addresses_that_are_fine() -> None:
    urls = ["http://127.0.0.1:1/base/v1/", "https://gateway.example/team", "http://[::1]:8000"]
    assert check_endpoints(urls, allow_remote=True) == ("http://127.0.0.1:1/base", urls[1], urls[2])


def test_no_file_of_a_run_has_a_password(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    url = "http://me:pw-4711@127.0.0.1:1"
    given = [f"out={out}", "backend=vllm", "workload.num_requests=2"]
    assert simulate.main([*given, f"backend.endpoints=[{url}]"]) == 2
    folder = tmp_path / "experiment"
    folder.mkdir()
    (folder / "mine.yaml").write_text(f"# @package _global_\nbackend:\n  endpoints: ['{url}']\n")
    assert simulate.main([*given, f"hydra.searchpath=[file://{tmp_path}]", "+experiment=mine"]) == 2
    said = capsys.readouterr().err
    assert said.count("has a user name or password") == 1
    assert said.count("was given with a user name or password") == 1
    assert "pw-4711" not in said
    files = [file for file in out.rglob("*") if file.is_file()]
    assert files
    assert all("pw-4711" not in file.read_text() for file in files)
