"""Buckets that are not S3: what differs between clouds. Azurite is in tests/azure."""

import json
from pathlib import Path

import numpy as np

import stepwell as sw
from stepwell.files.remote import About
from tests.buckets import Bucket


def test_a_bucket_of_google(s3: Bucket, tmp_path: Path) -> None:
    """The same server, asked as obstore asks Google's."""
    with sw.StepWriter(tmp_path / "games", {"n": "<i4"}, {"score": int}) as writer:
        for score in range(5):
            writer.append({"n": np.arange(100) + score}, score=score)
    s3.upload(tmp_path / "games", "google")
    key = {"gcs_base_url": s3.proxy.url, "disable_oauth": True, "client_email": ""}
    found = sw.open(
        s3.url("google").replace("s3://", "gs://"),
        service_account_key=json.dumps({**key, "private_key": "", "private_key_id": ""}),
        client_options={"allow_http": True},
    )
    here = sw.open(tmp_path / "games")
    assert (type(found), found.fingerprint) == (sw.StepReader, here.fingerprint)
    rows = np.arange(500)
    np.testing.assert_array_equal(found.take(rows)["n"], here.take(rows)["n"])
    assert found.verify().problems == ()


def test_azure_has_etags_without_quotes_in_lists() -> None:
    listed = About.of({"size": 3, "e_tag": "0x8DCE1F5B2A9C3D0"})
    assert listed == About.of({"size": 3, "e_tag": '"0x8DCE1F5B2A9C3D0"'})
    assert listed.condition == {"if_match": '"0x8DCE1F5B2A9C3D0"'}
