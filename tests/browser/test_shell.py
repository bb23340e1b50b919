"""The shell around the data, as text: no browser is needed for these."""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from importlib import resources

from made_up import made_up_run, page_data

from ragen2.reports.page import DATA_ID, SCRIPTS, render, script_json

ECHARTS_SHA256 = "61f13280aba3161f77fc801bf5f9c786f55f10432153a0683fc5cc0700b013d5"
NASTY = "</script><!--<script>&amp; \u2028 \u2029 \ud800 é"
WEB = resources.files("ragen2.reports") / "web"


def whole_page(**more: bool) -> str:
    run, blocks = made_up_run(text=f"{NASTY}{{}}")
    return render(page_data([run]), blocks, **more)


def test_json_in_a_script_element_cannot_end_it_and_reads_back_the_same() -> None:
    text = script_json({"said": NASTY})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"said": NASTY}


def test_the_page_has_the_data_and_exactly_our_scripts_whatever_the_data_says() -> None:
    page = whole_page()
    assert page.count("<script") == page.count("</script>") == 1 + 3 + 2
    data = re.search(f'id="{DATA_ID}">(.*?)</script>', page)
    assert data is not None
    assert json.loads(data[1])["runs"][0]["name"] == f"{NASTY}made-up"
    page.encode("utf-8")


def test_a_block_unpacks_to_what_was_put_in() -> None:
    run, blocks = made_up_run(text=f"{NASTY}{{}}")
    page = render(page_data([run]), blocks)
    for name, value in blocks.items():
        packed = re.search(f'data-name="{name}">(.*?)</script>', page)
        assert packed is not None
        assert json.loads(gzip.decompress(base64.b64decode(packed[1]))) == value


def test_only_scripts_named_by_their_hash_may_run() -> None:
    page = whole_page()
    policy = re.search('http-equiv="Content-Security-Policy" content="(.*?)"', page)
    assert policy is not None
    assert "'unsafe-inline'" not in policy[1].partition("script-src")[2].partition(";")[0]
    scripts = re.findall("<script>(.*?)</script>", page, re.DOTALL)
    hashes = [base64.b64encode(hashlib.sha256(one.encode()).digest()).decode() for one in scripts]
    assert len(hashes) == 2
    assert all(f"'sha256-{one}'" in policy[1] for one in hashes)
    assert "connect-src 'none'" in policy[1]


def test_a_live_page_holds_no_data_and_may_ask_its_own_server_only() -> None:
    page = whole_page(live=True)
    assert DATA_ID not in page.partition("<script>")[0]
    assert 'class="block"' not in page
    assert "connect-src 'self'" in page


def test_a_title_is_escaped_in_the_head() -> None:
    run, blocks = made_up_run()
    page = render(page_data([run], title="<b>&"), blocks)
    assert "<title>&lt;b&gt;&amp; · ragen2</title>" in page


def test_every_script_of_the_app_is_in_the_page() -> None:
    files = {one.name.removesuffix(".js") for one in (WEB / "app").iterdir()}
    assert files == set(SCRIPTS)


def test_no_script_of_ours_reads_text_as_html_or_code() -> None:
    for name in SCRIPTS:
        text = (WEB / "app" / f"{name}.js").read_text(encoding="utf-8")
        found = re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text)
        assert found is None, f"{name}.js has {found}"


def test_the_chart_library_is_the_published_file() -> None:
    library = (WEB / "vendor" / "echarts.common.min.js").read_bytes()
    assert hashlib.sha256(library).hexdigest() == ECHARTS_SHA256
    assert (WEB / "vendor" / "echarts.LICENSE").is_file()
