"""Tokens, an admin listener and TLS, through the headers and options that Triton's clients have for them."""

import os
import subprocess

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from conftest import HERE, Adapter, features

TOKENS = """
[[tokens]]
name = "wide-only"
token = "token-of-wide-only"
models = ["wi*"]
[[tokens]]
name = "once"
token = "token-of-once-a-day"
rate_rps = 0.00001
[[tokens]]
name = "operator"
token = "token-of-the-operator"
admin = true
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("access")
    (folder / "tokens.toml").write_text(TOKENS)
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        + ["-addext", names, "-keyout", folder / "key.pem", "-out", folder / "cert.pem"],
        check=True,
        stderr=subprocess.DEVNULL,
    )
    return folder


def serve(*options):
    server = subprocess.Popen(
        [os.environ["SYMPHONY"], "serve", "--http", "127.0.0.1:0", "--admin", "127.0.0.1:0", *options, HERE],
        stdout=subprocess.PIPE,
        text=True,
    )
    ready = [server.stdout.readline().split("://")[1].strip() for _ in range(3)]
    yield dict(zip(["http", "grpc", "admin"], ready))
    server.terminate()
    assert server.wait(timeout=60) == 0


@pytest.fixture(scope="module")
def guarded(folder):
    yield from serve("--tokens", folder / "tokens.toml")


@pytest.fixture(scope="module")
def encrypted(folder):
    yield from serve("--tls-cert", folder / "cert.pem", "--tls-key", folder / "key.pem")


def bearer(token):
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_tokens(name, guarded):
    adapter = Adapter(name, guarded[name])
    with adapter.client() as client:
        inputs = [adapter.input("features", features(1))]
        assert client.is_server_live() and client.is_server_ready()
        assert client.infer("wide", inputs, headers=bearer("token-of-wide-only")) is not None
        for token, status in [
            ("token-of-nobody", adapter.status(401, "UNAUTHENTICATED")),
            ("token-of-wide-only", adapter.status(403, "PERMISSION_DENIED")),
        ]:
            with pytest.raises(InferenceServerException) as error:
                client.get_model_metadata("other", headers=bearer(token))
            assert error.value.status() == status, error.value
        with pytest.raises(InferenceServerException) as error:
            # The call of this protocol or of the other one has used the rate up.
            for _ in range(2):
                client.get_server_metadata(headers=bearer("token-of-once-a-day"))
        assert error.value.status() == adapter.status(429, "RESOURCE_EXHAUSTED"), error.value


@pytest.mark.parametrize("name", ["http", "grpc"])
def test_admin_calls_have_a_listener_of_their_own(name, guarded):
    operator = bearer("token-of-the-operator")
    adapter = Adapter(name, guarded[name])
    with adapter.client() as client:
        with pytest.raises(InferenceServerException) as error:
            client.get_system_shared_memory_status(headers=operator)
        assert error.value.status() == adapter.status(403, "PERMISSION_DENIED")
        assert guarded["admin"] in error.value.message()
    with Adapter(name, guarded["admin"]).client() as client:
        client.get_system_shared_memory_status(headers=operator)
        settings = {"log_verbose_level": 0}
        client.update_log_settings(settings, headers=operator)
        with pytest.raises(InferenceServerException) as error:
            client.update_log_settings(settings, headers=bearer("token-of-wide-only"))
        assert error.value.status() == adapter.status(403, "PERMISSION_DENIED")


def test_tls(folder, encrypted):
    trusted = folder / "cert.pem"
    options = {
        "http": {"ssl": True, "ssl_options": {"ca_certs": str(trusted)}},
        "grpc": {"ssl": True, "root_certificates": str(trusted)},
    }
    for name in ["http", "grpc"]:
        adapter = Adapter(name, encrypted[name].replace("127.0.0.1", "localhost"))
        with adapter.client(**options[name]) as client:
            inputs = [adapter.input("features", features(3))]
            result = client.infer("wide", inputs)
            scores = result.as_numpy("scores")
            assert len(scores) == 3 and np.isfinite(scores).all()
