"""`tamis inspect`: counts, tables, maps in pages and in files, and the maps in reports of mixtures."""

import base64
import json


def test_inspect_counts_parameters_without_a_checkpoint(tamis):
    counts = json.loads(tamis.out("inspect", "--psi", 16, "--vocab", 50257, "--json"))
    assert counts["parameters"] - counts["parameters_without_embedding"] == 50257 * 256, counts
    assert counts["config"]["num_hidden_layers"] == 16, counts


def test_inspect_prints_a_table_of_heads(tamis, digits):
    text = tamis.out("inspect", digits)
    for wanted in ("2 layers x 4 heads", "parameters", "without embedding", "window w", "acceptance width r", "head 3"):
        assert wanted in text, (wanted, text)
    tiles = json.loads(tamis.out("inspect", digits, "--json"))["tiles"]
    assert len(tiles) == 8 and all(tile["window"] > 1 and 0 < tile["accept"] < 1 for tile in tiles), tiles


def test_inspect_reads_a_text_from_standard_input(tamis, digits):
    tiles = json.loads(tamis.out("inspect", digits, "--text", "-", "--json", input="A=12\nB=34\nA=12\n"))["tiles"]
    assert all(0 <= tile["nonzero"] <= 1 for tile in tiles), tiles
    assert "keys accepted" in tamis.out("inspect", digits, "--text", "-", input="A=1\n")


def test_inspect_says_accepted_only_of_mechanisms_that_select(tamis, letters):
    text = tamis.out("inspect", letters, "--text", "-", input="Dear reader")
    accepted, spread = text.index("keys accepted"), text.index("effective number of keys")
    assert accepted < spread, text
    shares = [line.split()[1:] for line in text[accepted:spread].splitlines()[2:6]]
    assert [row[0] == "-" for row in shares] == [True, True, False, True], text  # softmax, window, entmax, mLSTM


def test_wrong_use_is_told_in_one_line(tamis, digits):
    plain = tamis.directory / "plain.txt"
    plain.write_text("text")
    for arguments, code in [
        (["inspect"], 2),
        (["inspect", digits, "--psi", 4], 2),
        (["inspect", plain], 3),
        (["inspect", tamis.directory / "nowhere"], 3),
        (["report", tamis.directory], 3),
        (["report", plain], 3),
        (["report", digits, tamis.directory / "nowhere"], 3),
        (["report", digits, digits], 2),
        (["inspect", digits, "--map", "maps.svg"], 2),
        (["inspect", digits, "--text", "-", "--map", "maps.gif"], 2),
        (["inspect", digits, "--text", "-", "--map", "maps.svg", "--map-scale", "lin"], 2),
        (["inspect", digits, "--text", tamis.directory / "none"], 3),
        (["inspect", digits, "--text", "-"], 3),
        (["report", digits, "--output", plain / "report.html"], 30),
    ]:
        complaint = tamis.out(*arguments, code=code, input="")
        assert complaint.count("\n") == 1 and complaint.startswith("tamis: "), (arguments, complaint)


# Maps in pages and in files.


def test_inspect_writes_a_page_for_any_text(tamis, digits, page):
    text = tamis.directory / "text.txt"
    text.write_bytes("Æsop’s fox & the <b>grapes</b>\n".encode() + b"\xff\x00 end")
    html = tamis.directory / "maps.html"
    assert tamis.out("inspect", digits, "--text", text, "--html", html).strip() == str(html)
    page.open(html)
    assert page.js("document.documentElement.dataset.errors") is None
    assert page.js('document.querySelectorAll(".thumbnail canvas").length') == 8
    assert page.js('document.getElementById("training").hidden && document.getElementById("samples").hidden')
    shown = page.text("#tokens")
    assert "<b>grapes</b>" in shown and "Æ" in shown and "\\xFF" in shown, shown


def test_displayed_weights_of_a_row_add_up_to_one(letters, page):
    """As the page decodes them: they added up to 3.9 when every small weight was rounded up."""
    page.open(letters / "report.html")
    found = page.js("""(() => {
      const relevance = JSON.parse(document.getElementById("data").textContent).relevance;
      const worst = {};
      for (const tile of relevance.maps) {
        const map = new RelevanceMap(tile, relevance.tokens.length);
        for (let query = 0; query < map.length; ++query) {
          let sum = 0;
          for (let key = 0; key <= query; ++key) if (map.inside(query, key)) sum += map.pair(query, key).relevance;
          worst[map.mechanism] = Math.max(worst[map.mechanism] || 0, Math.abs(sum - 1));
          if (Math.abs(sum - map.rows[query].sum) > 1e-9) return "the page tells another sum";
        }
      }
      return worst;
    })()""")
    for mechanism in ("softmax attention", "sliding-window attention", "entmax attention"):
        assert found[mechanism] < 1e-3, found


def test_accepted_is_said_only_where_a_mechanism_accepts(letters, page):
    page.open(letters / "report.html")
    said = {}
    for tile in page.js('JSON.parse(document.getElementById("data").textContent).relevance.maps'):
        page.js(f'location.hash = "tile={tile["layer"]}.{tile["head"]}&query=40"')
        page.wait(
            f'document.getElementById("tile-title").textContent.startsWith("Layer {tile["layer"]}, '
            f'head {tile["head"]}")'
        )
        text = page.js('document.querySelector(".detail").textContent + document.getElementById("map").ariaLabel')
        said.setdefault(tile["mechanism"], []).append("accept" in text or "reject" in text)
    for selects in ("entmax attention", "screening"):
        assert all(said.pop(selects)), said
    assert not any(word for words in said.values() for word in words), said
    assert set(said) == {"softmax attention", "sliding-window attention", "mLSTM"}, said


def test_the_first_row_does_not_set_the_scale(letters, page):
    """Its one weight is 1: the others were all pale compared with it."""
    page.open(letters / "report.html", fragment="tile=0.0&query=63")
    shade = """(() => {
      const relevance = JSON.parse(document.getElementById("data").textContent).relevance;
      const map = new RelevanceMap(relevance.maps[0], relevance.tokens.length), row = map.length - 1;
      return map.shade(row, map.rows[row].largest, document.getElementById("map-scale").value);
    })()"""
    assert page.js('document.getElementById("map-scale").value') == "log"
    assert "logarithm" in page.text("#scale-note")
    assert page.js(shade) > 0.5
    before = page.js('document.getElementById("map-canvas").toDataURL()')
    page.select("#map-scale", "row")
    assert page.js(shade) == 1
    assert page.js('document.getElementById("map-canvas").toDataURL()') != before
    assert "row" in page.text("#scale-note")


def test_static_maps_have_the_colours_of_the_page(tamis, letters, page):
    text = tamis.directory / "dear.txt"
    text.write_text("Dear reader, line 1 of this letter.")
    png, html = tamis.directory / "maps.png", tamis.directory / "dear.html"
    for scale in ("value", "row", "log"):
        written = tamis.out(
            "inspect", letters, "--text", text, "--html", html, "--map", png, "--tile", "2.1", "--map-scale", scale
        )
        assert written.split() == [str(html), str(png)], written
        picture = base64.b64encode(png.read_bytes()).decode()
        page.open(html, fragment="tile=2.1&theme=light")
        page.select("#map-scale", scale)
        different = page.js(
            """(async () => {
          const image = new Image();
          image.src = "data:image/png;base64,%s";
          await image.decode();
          const canvas = document.createElement("canvas"), own = document.getElementById("map-canvas");
          canvas.width = image.width;
          canvas.height = image.height;
          canvas.getContext("2d").drawImage(image, 0, 0);
          const square = image.width / own.width;
          if (!Number.isInteger(square)) return [image.width, own.width];
          // The page holds weights as float16, the picture is drawn from float32: a shade apart at most.
          const at = (c, x, y) => [...c.getContext("2d").getImageData(x, y, 1, 1).data];
          const far = (a, b) => a.some((channel, i) => Math.abs(channel - b[i]) > 4);
          const different = [];
          for (let y = 0; y < own.height; ++y) for (let x = 0; x < own.width; ++x)
            if (far(at(own, x, y), at(canvas, x * square, y * square))) different.push([x, y]);
          return different;
        })()"""
            % picture
        )
        assert different == [], (scale, different)


def test_static_maps_are_an_svg_too(tamis, letters, page):
    svg = tamis.directory / "maps.svg"
    tamis.out("inspect", letters, "--text", "-", "--map", svg, input="Dear <b>reader</b>\r\n")
    page.open_file(svg)
    page.wait('document.querySelectorAll("svg image").length === 10')
    text = page.js("document.documentElement.textContent")
    for wanted in ("queries", "mLSTM", "screening", "logarithm", "4.1"):
        assert wanted in text, (wanted, text)
    refused = tamis.out("inspect", letters, "--text", "-", "--map", svg, "--tile", "5.0", code=2, input="Dear")
    assert "the last one is 4.1" in refused, refused
    tamis.out("inspect", letters, "--text", "-", "--map", svg, "--tile", "2.1", input="Dear <b>\r")
    page.open_file(svg)
    page.wait('document.querySelectorAll("svg image").length === 1')
    tokens = page.js('[...document.querySelectorAll(".token")].map((e) => e.textContent)')
    assert "<" in tokens and "\\x0D" in tokens and len(tokens) == 2 * 9, tokens
