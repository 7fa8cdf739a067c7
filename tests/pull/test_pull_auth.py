"""Challenges, tokens, and to whom a secret goes."""

import base64

import pytest
from faulty_server import Fault, FaultyRegistry, serving

from modelstore.digest import Digest
from modelstore.errors import BadReply, SignInRequired
from modelstore.names import ModelName
from modelstore.registry.access import Access
from modelstore.registry.address import parse_registry
from modelstore.registry.auth import Auth, Challenge, Secret, is_same_site, parse_challenge
from modelstore.registry.client import RegistryClient

BASIC = "Basic " + base64.b64encode(b"me:word").decode()


@pytest.mark.parametrize(
    ("header", "challenge"),
    [
        (
            'Bearer realm="https://a/t",service="s",scope="x:y:pull"',
            ("https://a/t", "s", "x:y:pull"),
        ),
        ('bearer  realm="https://a/t" , scope="a b"', ("https://a/t", "", "a b")),
        ("Bearer realm=https://a/t,service=s", ("https://a/t", "s", "")),
        ('Basic realm="x"', None),
        ("Bearer scope=x", None),
        ("", None),
    ],
)
def test_a_challenge(header: str, challenge: tuple[str, str, str] | None) -> None:
    assert parse_challenge(header) == (Challenge(*challenge) if challenge else None)


@pytest.mark.parametrize(
    ("url", "other", "expected"),
    [
        ("https://h/x", "https://H:443/y", True),
        ("https://h/x", "http://h/x", False),
        ("https://h/x", "https://h:444/x", False),
        ("https://hf.co/v2", "https://huggingface.co/v2/token", True),
        ("https://hf.co/v2", "http://huggingface.co/v2/token", False),
        ("https://hf.co/v2", "https://cdn.huggingface.co/x", False),
        ("https://hf.co.evil.example/v2", "https://hf.co/", False),
    ],
)
def test_what_is_one_site(url: str, other: str, expected: bool) -> None:
    assert is_same_site(url, other) is expected


class Tokens:
    """A token service that remembers who asked, and how."""

    def __init__(self, status: int = 200, body: bytes = b'{"token":"t1"}') -> None:
        self.asked: list[tuple[str, str]] = []
        self.reply = status, body

    def __call__(self, url: str, authorization: str) -> tuple[int, bytes]:
        self.asked.append((url, authorization))
        return self.reply


def test_a_token_is_got_once_for_each_scope_and_goes_to_the_registry_alone() -> None:
    tokens = Tokens()
    auth = Auth("https://reg.example", Secret(), tokens)
    assert auth.header("https://reg.example/v2/") == ""
    for _ in range(2):
        auth.answer('Bearer realm="https://auth.example/t?a=1",service="s"', "repository:x:pull")
    assert tokens.asked == [
        ("https://auth.example/t?a=1&service=s&scope=repository%3Ax%3Apull", "")
    ]
    assert auth.header("https://reg.example/v2/x") == "Bearer t1"
    for url in ("https://cdn.example/", "http://reg.example/", "https://reg.example:444/"):
        assert auth.header(url) == ""


@pytest.mark.parametrize(
    ("base", "secret", "realm", "header"),
    [
        ("https://r.example", Secret("me", "word"), "https://r.example/t", BASIC),
        ("https://r.example", Secret("me", "word"), "https://auth.example/t", BASIC),
        ("https://r.example", Secret("me", "word"), "http://auth.example/t", ""),
        ("https://r.example", Secret(), "https://r.example/t", ""),
        ("https://hf.co", Secret(token="h"), "https://huggingface.co/t", "Bearer h"),
        ("https://hf.co", Secret(token="h"), "https://auth.example/t", ""),
    ],
)
def test_who_gets_the_secret(base: str, secret: Secret, realm: str, header: str) -> None:
    tokens = Tokens()
    Auth(base, secret, tokens).answer(f'Bearer realm="{realm}"', "s")
    assert tokens.asked[0][1] == header


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (401, b"", SignInRequired),
        (403, b"", SignInRequired),
        (500, b"", BadReply),
        (200, b"<html>", BadReply),
        (200, b"{}", BadReply),
        (200, b'{"token":"a\\nb"}', BadReply),
    ],
)
def test_a_token_service_that_gives_none(status: int, body: bytes, error: type[Exception]) -> None:
    with pytest.raises(error):
        Auth("https://r.example", Secret(), Tokens(status, body)).answer(
            'Bearer realm="https://r.example/t"', "s"
        )


def test_a_token_that_is_not_enough_ends_it() -> None:
    auth = Auth("https://r.example", Secret(), Tokens())
    auth.answer('Bearer realm="https://r.example/t"', "s")
    with pytest.raises(SignInRequired, match="keys that are registered"):
        auth.answer('Bearer realm="https://r.example/t"', "s", used="Bearer t1")


def test_the_token_of_hugging_face_is_for_it_alone() -> None:
    access = Access((parse_registry("https://me:word@reg.example"),), "hf_secret")
    assert access.authorization("https://hf.co/x") == "Bearer hf_secret"
    assert access.authorization("https://huggingface.co/x") == "Bearer hf_secret"
    assert access.authorization("https://reg.example/x") == BASIC
    for url in ("http://hf.co/x", "https://cdn-lfs.hf.co/", "http://reg.example/", "https://x/"):
        assert access.authorization(url) == ""


def test_a_protected_registry_and_its_blobs_elsewhere(registry: FaultyRegistry) -> None:
    with serving() as cdn:
        data = b"d" * 1000
        manifest = registry.put("a/b", ("x", data))
        cdn.put("a/b", ("x", data))
        registry.realm = f"http://{registry.host}/token"
        registry.plan = lambda asked: Fault(location=f"http://{cdn.host}{asked.path}")
        access = Access(tuple(parse_registry(f"http://{s.host}") for s in (registry, cdn)))
        with RegistryClient(ModelName.parse(f"{registry.host}/a/b"), access) as client:
            assert client.manifest() == manifest
            for _ in range(2):
                with client.blob(Digest.of(data), "0-9") as response:
                    assert b"".join(response.iter_raw()) == data[:10]
        assert [asked.headers.get("authorization") for asked in cdn.asked] == [None, None]
        # The second time the blob's location was known.
        assert [asked.path.split("?")[0].rpartition("/")[2][:8] for asked in registry.asked] == [
            "latest",
            "token",
            "latest",
            Digest.of(data).text[:8],
        ]
        challenged = [asked.headers.get("authorization") for asked in registry.asked]
        assert challenged == [None, None, "Bearer good", "Bearer good"]
