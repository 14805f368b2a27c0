#!/usr/bin/env python3
"""Trains a small run with the real program, makes its pages and reads them in headless Chromium.

report_test.py PROGRAM [DIRECTORY]   keeps the run, the pages and screenshots in DIRECTORY when one is named
"""
import base64
import fcntl
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time

SKIPPED = 77
HOSTILE = '</script><script>window.boom = 1</script><b>&amp;\n'
RECIPE = f"""
[model]
hidden_size = 32
num_hidden_layers = 2
num_attention_heads = 4
[data.sources.abc_digits]
kind = "abc_digits"
[train]
steps = 24
length = 96
batch_tokens = 768
lr = 0.03
warmup_steps = 4
log_every = 2
save_every = 12
validate_every = 8
validate_tokens = 2048
sample_every = 8
sample_prompt = {json.dumps(HOSTILE)}
sample_tokens = 8
"""


# A stack of four mechanisms on a text with carriage returns: attention maps without ABCDigits.
STACK = """
[model]
model_type = "swax"
pattern = "awem"
hidden_size = 32
num_hidden_layers = 4
num_attention_heads = 2
window = 24
[data.sources.letter]
kind = "text"
files = ["letter.txt"]
validation_fraction = 0.2
[train]
steps = 24
length = 64
batch_tokens = 512
lr = 0.01
warmup_steps = 4
log_every = 1
save_every = 12
validate_every = 8
validate_tokens = 512
sample_every = 12
sample_prompt = "one\\r\\ntwo\\rthree\\u0001"
sample_tokens = 8
"""


class Browser:
    """Chromium, spoken to through the DevTools protocol on a pair of pipes."""

    FLAGS = ['--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
             '--disable-background-networking', '--disable-component-update', '--disable-sync', '--hide-scrollbars',
             '--remote-debugging-pipe', 'about:blank']

    def __init__(self, path, profile):
        to_browser, from_browser = os.pipe(), os.pipe()
        # Chromium reads from 3 and writes to 4; above 10 the pipes cannot be in their way.
        read, write = (fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser[0], from_browser[1]))

        def place_pipes():
            os.dup2(read, 3)
            os.dup2(write, 4)

        self.process = subprocess.Popen([path, *self.FLAGS, f'--user-data-dir={profile}'], pass_fds=(3, 4),
                                        preexec_fn=place_pipes, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for fd in (read, write, to_browser[0], from_browser[1]):
            os.close(fd)
        self.out, self.into = os.fdopen(to_browser[1], 'wb', 0), os.fdopen(from_browser[0], 'rb', 0)
        self.buffer, self.count, self.events, self.session = b'', 0, [], None
        target = self.call('Target.createTarget', url='about:blank')['targetId']
        self.session = self.call('Target.attachToTarget', targetId=target, flatten=True)['sessionId']
        for domain in ('Page', 'Runtime', 'Network', 'Log'):
            self.call(domain + '.enable')

    def call(self, method, **params):
        self.count += 1
        message = {'id': self.count, 'method': method, 'params': params}
        if self.session:
            message['sessionId'] = self.session
        self.out.write(json.dumps(message).encode() + b'\0')
        while True:
            answer = self.receive()
            if answer.get('id') == self.count:
                if 'error' in answer:
                    raise RuntimeError(f'{method}: {answer["error"]}')
                return answer['result']
            self.events.append(answer)

    def receive(self):
        while b'\0' not in self.buffer:
            piece = self.into.read(1 << 20)
            if not piece:
                raise RuntimeError('chromium ended')
            self.buffer += piece
        message, self.buffer = self.buffer.split(b'\0', 1)
        return json.loads(message)

    def js(self, expression):
        result = self.call('Runtime.evaluate', expression=expression, returnByValue=True, awaitPromise=True)
        if 'exceptionDetails' in result:
            raise RuntimeError(f'{expression}: {result["exceptionDetails"]["exception"]["description"]}')
        return result['result'].get('value')

    def wait(self, expression, seconds=120):
        deadline = time.monotonic() + seconds
        while not self.js(expression):
            if time.monotonic() > deadline:
                raise RuntimeError(f'waited {seconds} s for {expression}')
            time.sleep(0.05)

    def open(self, page, fragment='', width=1280, height=900, scheme='light'):
        self.events.clear()
        self.call('Emulation.setEmulatedMedia', features=[{'name': 'prefers-color-scheme', 'value': scheme}])
        self.call('Emulation.setDeviceMetricsOverride', width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.call('Page.navigate', url='about:blank')
        self.call('Page.navigate', url=page.resolve().as_uri() + ('#' + fragment if fragment else ''))
        self.wait('document.readyState === "complete" && document.documentElement.dataset.ready === "true"')

    def hover(self, selector, x=0.5, y=0.5):
        """Moves the mouse over a point of an element, given as fractions of its size."""
        box = self.js(f'(() => {{ const e = document.querySelector({json.dumps(selector)});'
                      'e.scrollIntoView({block: "center", behavior: "instant"});'
                      'const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; })()')
        at = {'x': box[0] + x * box[2], 'y': box[1] + y * box[3]}
        for nudge in (2, 0):  # a chart reacts to movement
            self.call('Input.dispatchMouseEvent', type='mouseMoved', x=at['x'] + nudge, y=at['y'])
        return at

    def press(self, key, shift=False):
        for kind in ('keyDown', 'keyUp'):
            self.call('Input.dispatchKeyEvent', type=kind, key=key, modifiers=8 if shift else 0)

    def assert_clean(self):
        """The page that is open drew everything and loaded nothing."""
        errors = self.js('document.documentElement.dataset.errors')
        assert errors is None, errors
        for event in self.events:
            assert event['method'] != 'Runtime.exceptionThrown', event
            if event['method'] == 'Network.requestWillBeSent':
                url = event['params']['request']['url']
                assert url.split(':')[0] in ('file', 'data', 'blob', 'about'), url
        tags = self.js('[...document.querySelectorAll("[src], link[href], [action]")].map((e) => e.src || e.href)')
        assert all(tag.startswith('data:') for tag in tags), tags

    def assert_fits(self, width):
        """Nothing of the page that is open, `width` wide, is wider."""
        wide = self.js('[...document.querySelectorAll("main *")].filter((e) => e.scrollWidth > e.clientWidth + 1 &&'
                       'getComputedStyle(e).overflowX === "visible" && e.getBoundingClientRect().right > innerWidth)'
                       '.map((e) => e.id || e.className || e.tagName)')
        assert self.js('document.documentElement.scrollWidth') <= width, wide

    def assert_controls_have_names(self):
        nameless = self.js('[...document.querySelectorAll("button, input, [role=img], [tabindex]")].filter((e) =>'
                           '!(e.getAttribute("aria-label") || e.labels?.length || e.textContent.trim()))'
                           '.map((e) => e.outerHTML)')
        assert nameless == [], nameless

    def picture(self, path):
        size = self.js('[document.documentElement.scrollWidth, document.documentElement.scrollHeight]')
        clip = {'x': 0, 'y': 0, 'width': size[0], 'height': size[1], 'scale': 1}
        data = self.call('Page.captureScreenshot', clip=clip, captureBeyondViewport=True)['data']
        path.write_bytes(base64.b64decode(data))

    def close(self):
        self.call('Browser.close')
        self.process.wait(30)


class Tests:
    def __init__(self, program, browser, directory):
        self.program, self.browser, self.directory = program, browser, directory
        self.run = directory / 'run'

    def tamis(self, *arguments, code=0, stdin=None):
        done = subprocess.run([self.program, *map(str, arguments)], input=stdin, capture_output=True, text=True,
                              timeout=600)
        assert done.returncode == code, f'tamis {arguments}: exit {done.returncode}, expected {code}\n{done.stderr}'
        return done.stdout if code == 0 else done.stderr

    def open(self, page='run/report.html', **options):
        self.browser.open(self.directory / page, **options)
        return self.browser

    def prepare(self):
        recipe = self.directory / 'recipe.toml'
        recipe.write_text(RECIPE)
        self.tamis('train', recipe, '--set', f'run.dir={self.run}')
        self.tamis('eval', 'abc_digits', self.run, '--lengths', '236,256', '--depths', '0.1,0.9', '--instances', '2')
        # Resumed once, as run.json says.
        self.tamis('train', recipe, '--set', f'run.dir={self.run}', '--set', 'train.steps=26')
        self.tamis('eval', 'copy', self.run, '--lengths', '16,32,64', '--instances', '4')
        assert self.tamis('report', self.run).strip() == str(self.run / 'report.html')

        self.stack = self.directory / 'stack'
        (self.directory / 'letter.txt').write_bytes(
            b''.join(b'Dear reader, line %d of this letter.\r\n' % i for i in range(400)))
        stack = self.directory / 'stack.toml'
        stack.write_text(STACK.replace('letter.txt', str(self.directory / 'letter.txt')))
        self.tamis('train', stack, '--set', f'run.dir={self.stack}')
        self.tamis('eval', 'loss', self.stack, self.directory / 'letter.txt', '--window', '64')
        self.tamis('report', self.stack)

    # The commands.

    def test_inspect_counts_parameters_without_a_checkpoint(self):
        counts = json.loads(self.tamis('inspect', '--psi', 16, '--vocab', 50257, '--json'))
        assert counts['parameters'] - counts['parameters_without_embedding'] == 50257 * 256, counts
        assert counts['config']['num_hidden_layers'] == 16, counts

    def test_inspect_prints_a_table_of_tiles(self):
        text = self.tamis('inspect', self.run)
        for wanted in ('2 layers x 4 heads', 'parameters', 'without embedding', 'window w', 'acceptance width r', 'head 3'):
            assert wanted in text, (wanted, text)
        tiles = json.loads(self.tamis('inspect', self.run, '--json'))['tiles']
        assert len(tiles) == 8 and all(tile['window'] > 1 and 0 < tile['accept'] < 1 for tile in tiles), tiles

    def test_inspect_reads_a_text_from_standard_input(self):
        tiles = json.loads(self.tamis('inspect', self.run, '--text', '-', '--json', stdin='A=12\nB=34\nA=12\n'))['tiles']
        assert all(0 <= tile['nonzero'] <= 1 for tile in tiles), tiles
        assert 'keys accepted' in self.tamis('inspect', self.run, '--text', '-', stdin='A=1\n')

    def test_inspect_says_accepted_only_of_mechanisms_that_select(self):
        text = self.tamis('inspect', self.stack, '--text', '-', stdin='Dear reader')
        accepted, spread = text.index('keys accepted'), text.index('effective number of keys')
        assert accepted < spread, text
        shares = [line.split()[1:] for line in text[accepted:spread].splitlines()[2:6]]
        assert [row[0] == '-' for row in shares] == [True, True, False, True], text  # softmax, window, entmax, mLSTM

    def test_wrong_use_is_told_in_one_line(self):
        plain = self.directory / 'plain.txt'
        plain.write_text('text')
        for arguments, code in [(['inspect'], 2), (['inspect', self.run, '--psi', 4], 2), (['inspect', plain], 3),
                                (['inspect', self.directory / 'nowhere'], 3), (['report', self.directory], 3),
                                (['report', plain], 3), (['report', self.run, self.directory / 'nowhere'], 3),
                                (['report', self.run, self.run], 2),
                                (['inspect', self.run, '--map', 'maps.svg'], 2),
                                (['inspect', self.run, '--text', '-', '--map', 'maps.gif'], 2),
                                (['inspect', self.run, '--text', '-', '--map', 'maps.svg', '--map-scale', 'lin'], 2), (['inspect', self.run, '--text', self.directory / 'none'], 3),
                                (['inspect', self.run, '--text', '-'], 3),
                                (['report', self.run, '--output', plain / 'report.html'], 30)]:
            complaint = self.tamis(*arguments, code=code, stdin='')
            assert complaint.count('\n') == 1 and complaint.startswith('tamis: '), (arguments, complaint)

    # The report.

    def test_report_draws_without_errors_and_loads_nothing(self):
        self.open().assert_clean()

    def test_report_has_every_chart(self):
        browser = self.open()
        for chart in ('loss', 'gradient', 'rate', 'speed', 'windows', 'accepts', 'eval-0-0', 'eval-1', 'scatter'):
            traces = browser.js(f'(document.getElementById("chart-{chart}").data || []).length')
            drawn = browser.js(f'document.querySelectorAll("#chart-{chart} .main-svg").length')
            assert traces and drawn, (chart, traces, drawn)
        assert browser.js('document.getElementById("chart-loss").data.at(-1).name') == 'validation, abc_digits'
        assert browser.js('document.getElementById("chart-scatter").data[0].x.length') == 8
        sections = browser.js('[...document.querySelectorAll("main > section:not([hidden])")].map((s) => s.id)')
        for section in ('training', 'evaluation', 'relevance', 'tiles', 'samples', 'provenance'):
            assert section in sections, sections

    def test_heat_map_tells_wilson_intervals_on_hover(self):
        browser = self.open()
        browser.hover('[data-task=abc_digits] .nsewdrag', 0.25, 0.25)
        told = 'document.querySelector("[data-task=abc_digits] .hoverlayer").textContent'
        browser.wait(told + '.includes("Wilson")')
        label = browser.js(told)
        assert '236 tokens' in label and 'of 2' in label, label

    def test_maps_are_drawn_and_follow_the_pointer(self):
        browser = self.open(fragment='tile=1.3')
        assert browser.js('document.querySelectorAll(".thumbnail canvas").length') == 8
        assert browser.js('document.getElementById("tile-title").textContent') == 'Layer 1, head 3 screening'
        height = browser.js('document.documentElement.scrollHeight')
        browser.hover('#map', 0.25, 0.75)
        pair = browser.js('document.getElementById("pair").textContent')
        assert 'query 72' in pair and 'key 24' in pair, pair
        browser.hover('#map', 0.75, 0.25)
        assert 'future' in browser.js('document.getElementById("pair").textContent')
        assert browser.js('document.documentElement.scrollHeight') == height, 'the layout jumped'
        # The last head of a layer begins with a window of 256, so nothing of these 96 tokens lies outside it.
        colour = browser.js('[...document.getElementById("map-canvas").getContext("2d").getImageData(95, 0, 1, 1).data]')
        assert colour == [196, 199, 204, 255], colour

    def test_numbers_of_a_pair_belong_together(self):
        browser = self.open()
        checked = browser.js('''(() => {
          const relevance = JSON.parse(document.getElementById("data").textContent).relevance;
          let accepted = 0;
          for (const tile of relevance.maps) {
            const map = new RelevanceMap(tile, relevance.tokens.length);
            let inside = 0, nonzero = 0;
            for (let q = 0; q < map.length; ++q) for (let k = 0; k < map.length; ++k) {
              const pair = map.pair(q, k);
              if (pair.state === "future" || pair.state === "outside") continue;
              ++inside;
              if (pair.state === "rejected") continue;
              ++nonzero;
              const trim = Math.max(1 - (1 - pair.similarity) / map.accept, 0) ** 2;
              const softmask = (Math.cos(Math.PI * (q - k) / map.window) + 1) / 2;
              if (Math.abs(trim - pair.trim) > 1e-6 || Math.abs(trim * softmask - pair.relevance) > 1e-6) return [q, k];
            }
            if (Math.abs(nonzero / inside - map.nonzero) > 1e-12) return [tile.layer, tile.head, nonzero / inside];
            accepted += nonzero;
          }
          return accepted;
        })()''')
        assert isinstance(checked, int) and checked > 0, checked

    def test_keyboard_reaches_tiles_and_pairs(self):
        browser = self.open(fragment='tile=0.1&query=40&key=30')
        browser.js('document.getElementById("map").focus()')
        browser.press('ArrowDown')
        browser.press('ArrowLeft', shift=True)
        pair = browser.js('document.getElementById("pair").textContent')
        assert 'query 41' in pair and 'key 20' in pair, pair
        browser.js('document.querySelector(".thumbnail[aria-current]").focus()')
        browser.press('ArrowRight')
        assert browser.js('document.activeElement.getAttribute("aria-label")').startswith('Layer 0, head 2')

    def test_a_clicked_token_lights_what_it_retrieves(self):
        browser = self.open()
        browser.js('document.querySelector("#tokens [data-index=\'50\']").click()')
        assert 'query 50' in browser.js('document.getElementById("pair").textContent')
        assert 'query=50' in browser.js('location.hash')
        browser.js('location.hash = "tile=0.2&query=33&key=31"')
        browser.wait('document.getElementById("pair").textContent.includes("query 33")')

    def test_theme_follows_the_system_and_the_button(self):
        browser = self.open(scheme='dark')
        assert browser.js('document.documentElement.dataset.theme') == 'dark'
        dark = browser.js('document.getElementById("chart-loss").layout.font.color')
        browser.js('document.getElementById("theme").click()')
        assert browser.js('document.documentElement.dataset.theme') == 'light'
        browser.wait(f'document.getElementById("chart-loss").layout.font.color !== "{dark}"')
        browser.js('localStorage.clear()')

    def test_text_from_outside_stays_text(self):
        browser = self.open()
        assert browser.js('window.boom') is None
        assert HOSTILE in browser.js('document.querySelector(".samples pre").textContent')
        assert '</script>' in browser.js('document.getElementById("recipe").textContent')
        assert browser.js('document.querySelectorAll("main b").length === document.querySelectorAll('
                          '".numbers b, .context b").length')

    def test_fits_a_phone(self):
        self.open(width=360, height=740).assert_fits(360)

    def test_controls_have_names(self):
        self.open().assert_controls_have_names()

    # Attention maps of stacks.

    def test_displayed_weights_of_a_row_add_up_to_one(self):
        """As the page decodes them: they added up to 3.9 when every small weight was rounded up."""
        found = self.open('stack/report.html').js("""(() => {
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
        for mechanism in ('softmax attention', 'sliding-window attention', 'entmax attention'):
            assert found[mechanism] < 1e-3, found

    def test_accepted_is_said_only_where_a_mechanism_accepts(self):
        browser = self.open('stack/report.html')
        said = {}
        for tile in browser.js('JSON.parse(document.getElementById("data").textContent).relevance.maps'):
            browser.js(f'location.hash = "tile={tile["layer"]}.{tile["head"]}&query=40"')
            browser.wait(f'document.getElementById("tile-title").textContent.startsWith("Layer {tile["layer"]}, '
                         f'head {tile["head"]}")')
            text = browser.js('document.querySelector(".detail").textContent + document.getElementById("map").ariaLabel')
            said.setdefault(tile['mechanism'], []).append('accept' in text or 'reject' in text)
        assert all(said.pop('entmax attention')), said
        assert not any(word for words in said.values() for word in words), said
        assert set(said) == {'softmax attention', 'sliding-window attention', 'mLSTM'}, said

    def test_the_first_row_does_not_set_the_scale(self):
        """Its one weight is 1: the others were all pale beside it."""
        browser = self.open('stack/report.html', fragment='tile=0.0&query=63')
        shade = """(() => {
          const relevance = JSON.parse(document.getElementById("data").textContent).relevance;
          const map = new RelevanceMap(relevance.maps[0], relevance.tokens.length), row = map.length - 1;
          return map.shade(row, map.rows[row].largest, document.getElementById("map-scale").value);
        })()"""
        assert browser.js('document.getElementById("map-scale").value') == 'log'
        assert 'logarithm' in browser.js('document.getElementById("scale-note").textContent')
        assert browser.js(shade) > 0.5
        before = browser.js('document.getElementById("map-canvas").toDataURL()')
        browser.js('(() => { const s = document.getElementById("map-scale"); s.value = "row";'
                   's.dispatchEvent(new Event("change")); })()')
        assert browser.js(shade) == 1
        assert browser.js('document.getElementById("map-canvas").toDataURL()') != before
        assert 'row' in browser.js('document.getElementById("scale-note").textContent')

    def test_static_maps_have_the_colours_of_the_page(self):
        text = self.directory / 'dear.txt'
        text.write_text('Dear reader, line 1 of this letter.')
        png, page = self.directory / 'maps.png', self.directory / 'dear.html'
        for scale in ('value', 'row', 'log'):
            written = self.tamis('inspect', self.stack, '--text', text, '--html', page, '--map', png, '--tile', '2.1',
                                 '--map-scale', scale)
            assert written.split() == [str(page), str(png)], written
            picture = base64.b64encode(png.read_bytes()).decode()
            different = self.open('dear.html', fragment='tile=2.1&theme=light').js("""(async () => {
              const s = document.getElementById("map-scale");
              s.value = "%s";
              s.dispatchEvent(new Event("change"));
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
            })()""" % (scale, picture))
            assert different == [], (scale, different)

    def test_static_maps_are_an_svg_too(self):
        svg = self.directory / 'maps.svg'
        self.tamis('inspect', self.stack, '--text', '-', '--map', svg, stdin='Dear <b>reader</b>\r\n')
        self.browser.call('Page.navigate', url=svg.as_uri())
        self.browser.wait('document.querySelectorAll("svg image").length === 8')
        text = self.browser.js('document.documentElement.textContent')
        for wanted in ('queries', 'mLSTM', 'logarithm', '3.1'):
            assert wanted in text, (wanted, text)
        refused = self.tamis('inspect', self.stack, '--text', '-', '--map', svg, '--tile', '4.0', code=2, stdin='Dear')
        assert 'the last one is 3.1' in refused, refused
        self.tamis('inspect', self.stack, '--text', '-', '--map', svg, '--tile', '2.1', stdin='Dear <b>\r')
        self.browser.call('Page.navigate', url='about:blank')
        self.browser.call('Page.navigate', url=svg.as_uri())
        self.browser.wait('document.querySelectorAll("svg image").length === 1')
        tokens = self.browser.js('[...document.querySelectorAll(".token")].map((e) => e.textContent)')
        assert '<' in tokens and '\\x0D' in tokens and len(tokens) == 2 * 9, tokens

    # What it shows is readable.

    def test_run_json_is_told_in_words_and_units(self):
        text = self.open().js('document.getElementById("machine").textContent')
        assert '[object' not in text and 'FLOP/s' in text and 'step 24' in text, text
        assert not re.search(r'\d\.\d{7}', text), text

    def test_no_tile_of_facts_stands_alone(self):
        for width in (1280, 1000, 700):
            rows = self.open(width=width).js('[...document.querySelectorAll("#facts > div")].map((e) => e.offsetTop)')
            assert len(rows) > 6 and rows.count(max(rows)) > 1, (width, rows)

    def test_a_loss_that_falls_to_zero_has_a_log_axis_and_a_readable_number(self):
        fallen = self.directory / 'fallen'
        fallen.mkdir(exist_ok=True)
        shutil.copy(self.run / 'config.toml', fallen)
        losses = [4 * 0.95 ** step for step in range(400)]
        records = [{'type': 'train', 'step': step + 1, 'loss': loss, 'tokens': 768 * (step + 1)}
                   for step, loss in enumerate(losses)]
        records.append({'type': 'validation', 'step': 400, 'source': 'abc_digits', 'loss': 4.679e-8})
        (fallen / 'log.jsonl').write_text(''.join(json.dumps(record) + '\n' for record in records))
        self.tamis('report', fallen)
        browser = self.open('fallen/report.html')
        chart = 'document.getElementById("chart-loss")'
        assert browser.js(chart + '.layout.yaxis.type') == 'log'
        assert '<0.0001' in browser.js('document.getElementById("facts").textContent')
        # The smoothed line begins where the loss began.
        assert browser.js(chart + '.data[1].y[0]') == losses[0]
        browser.js('document.querySelector("#training .switch").click()')
        browser.wait(chart + '.layout.yaxis.type === "linear"')

    def test_no_label_lies_on_a_line(self):
        browser = self.open()
        assert browser.js('charts.length') > 7
        labels = browser.js('[...document.querySelectorAll(".js-plotly-plot")].flatMap((e) => e.layout.annotations || [])')
        assert labels == [], labels

    def test_no_panel_is_half_empty(self):
        for page in ('run/report.html', 'stack/report.html'):
            gap = self.open(page, width=1280).js(
                '[...document.querySelectorAll("#training .charts, #evaluation-grid")].map((grid) =>'
                'grid.getBoundingClientRect().right - grid.lastElementChild.getBoundingClientRect().right)')
            assert all(abs(each) < 1 for each in gap), (page, gap)

    def test_the_recipe_ends_with_a_whole_line(self):
        cut = self.open().js('(() => { const e = document.getElementById("recipe");'
                             'return [e.clientHeight / parseFloat(getComputedStyle(e).lineHeight), e.scrollHeight, '
                             'e.clientHeight]; })()')
        assert cut[1] > cut[2] and abs(cut[0] - round(cut[0])) < 0.05, cut

    def test_carriage_returns_and_controls_are_no_boxes(self):
        browser = self.open('stack/report.html')
        text = browser.js('document.querySelector(".samples pre").textContent')
        assert text.startswith('one\ntwo\\rthree\\x01'), text
        raw = browser.js(r'[...document.querySelectorAll("#tokens span, pre, .context")].filter((e) =>'
                         r'/[\0-\x08\x0b-\x1f\x7f]/.test(e.textContent)).map((e) => e.outerHTML)')
        assert raw == [], raw

    # Several runs.

    def test_any_two_runs_are_compared(self):
        self.tamis('report', self.stack, self.run, '--output', self.directory / 'both.html')
        browser = self.open('both.html')
        browser.assert_clean()
        browser.assert_controls_have_names()
        names = browser.js('document.getElementById("chart-loss").data.map((trace) => trace.name)')
        for wanted in ('stack, training', 'run, training', 'stack, validation, letter', 'run, validation, abc_digits'):
            assert wanted in names, names
        for chart in ('gradient', 'rate', 'speed'):
            assert browser.js(f'document.getElementById("chart-{chart}").data.length') >= 2, chart
        # Their batches differ, so they are drawn over tokens.
        assert browser.js('document.getElementById("chart-loss").layout.xaxis.title.text') == 'tokens read'
        assert browser.js('document.getElementById("chart-loss").data[0].x.at(-1)') == 24 * 512
        evaluation = browser.js('document.getElementById("evaluation").textContent')
        for wanted in ('ABCDigits', 'copy', 'nats per byte', 'letter.txt', 'By position'):
            assert wanted in evaluation, (wanted, evaluation)
        comparison = browser.js('document.getElementById("comparison").textContent')
        assert 'model.pattern' in comparison and 'train.batch_tokens' in comparison, comparison
        self.open('both.html', width=360, height=740, scheme='dark').assert_fits(360)

    def test_beside_is_another_name_for_one_more_run(self):
        self.tamis('report', self.run, '--beside', self.stack, '--output', self.directory / 'beside.html')
        self.open('beside.html').assert_clean()
        assert self.browser.js('document.querySelectorAll("#table-runs tbody tr").length') == 2

    # The page of `tamis inspect`.

    def test_inspect_writes_a_page_for_any_text(self):
        text = self.directory / 'text.txt'
        text.write_bytes('Æsop’s fox & the <b>grapes</b>\n'.encode() + b'\xff\x00 end')
        page = self.directory / 'maps.html'
        assert self.tamis('inspect', self.run, '--text', text, '--html', page).strip() == str(page)
        browser = self.open('maps.html')
        assert browser.js('document.documentElement.dataset.errors') is None
        assert browser.js('document.querySelectorAll(".thumbnail canvas").length') == 8
        assert browser.js('document.getElementById("training").hidden && document.getElementById("samples").hidden')
        shown = browser.js('document.getElementById("tokens").textContent')
        assert '<b>grapes</b>' in shown and 'Æ' in shown and '\\xFF' in shown, shown

    def test_a_run_without_evaluation_or_checkpoint_has_a_report_too(self):
        bare = self.directory / 'bare'
        bare.mkdir(exist_ok=True)
        shutil.copy(self.run / 'config.toml', bare)
        (bare / 'log.jsonl').write_text((self.run / 'log.jsonl').read_text()[:-20])
        self.tamis('report', bare)
        browser = self.open('bare/report.html')
        assert browser.js('document.documentElement.dataset.errors') is None
        assert browser.js('document.getElementById("relevance").hidden && document.getElementById("evaluation").hidden')
        assert browser.js('document.getElementById("chart-loss").data.length')


def check_shootout_page(browser, page):
    """Reads the page of a shootout, an HTML file, and holds it against the data written into it."""
    browser.open(page)
    browser.assert_clean()
    browser.assert_controls_have_names()
    data = browser.js('JSON.parse(document.getElementById("data").textContent)')
    mixers = data['mixers']
    names = [mixer['name'] for mixer in mixers]

    # The summary: a row a mixer, sorted by a click on a column's head, what is missing last.
    assert shown_mixers(browser) == names
    speeds = {mixer['name']: (mixer.get('summary', {}).get('tokens_per_second') or {}).get('mean') for mixer in mixers}
    if any(speeds.values()):
        fastest_first = sorted(names, key=lambda name: -(speeds[name] or 0))
        button = '[...document.querySelectorAll("#summary .sort")].find((e) => e.textContent === "tokens/s")'
        for direction in ('descending', 'ascending'):
            browser.js(button + '.click()')
            assert browser.js(button + '.closest("th").ariaSort') == direction
            known = [name for name in shown_mixers(browser) if speeds[name]]
            wanted = [name for name in fastest_first if speeds[name]]
            assert known == (wanted if direction == 'descending' else wanted[::-1]), (direction, known)
            assert shown_mixers(browser)[:len(known)] == known, shown_mixers(browser)
        browser.js('document.querySelector("#summary .sort").click()')
    heads = browser.js('[...document.querySelectorAll("#summary thead th")].map((e) => e.firstChild.textContent)')
    measured = {task for mixer in mixers for task, entries in mixer.get('summary', {}).get('tasks', {}).items()
                if any(entry.get('mean') is not None for entry in entries)}
    assert measured <= set(heads), (measured, heads)

    # Where the best rate of learning is the grid's last, it is said.
    edges = [mixer['name'] for mixer in mixers if mixer.get('lr_edge')]
    note = browser.js('document.getElementById("edge-note").textContent')
    assert all(name in note for name in edges) and bool(note) == bool(edges), (edges, note)
    assert 'of sequences' not in browser.js('document.body.innerText')

    # Bold is only what differs beyond uncertainty.
    assert browser.js("""(() => {
      const cells = (...triples) => triples.map(([mean, low, high]) => ({mean, interval_95: [low, high]}));
      const best = (list, more = {}) => bestCells(list, {best: 'max', format: String, ...more}).join();
      return [best(cells([.9, .8, .95], [.85, .7, .9], [.3, .2, .4])), best(cells([.9, .8, .95], [.85, .7, .9])),
              best([{mean: 1, interval_95: null}, {mean: 2, interval_95: null}]), best([{mean: 1}, {mean: 2}], {exact: true})];
    })()""") == ['true,true,false', 'false,false', 'false,false', 'false,true']

    # Chance is marked where answers can be guessed.
    for task, chance in data.get('chance', {}).get('score', {}).items():
        shapes = browser.js(f'document.querySelector("[data-task={task}]").layout.shapes.map((s) => s.y0)')
        assert any(abs(y - chance) < 1e-12 for y in shapes), (task, chance, shapes)
        caption = browser.js(f'document.querySelector("[data-task={task}]").closest("figure").textContent')
        assert f'chance {100 * chance:.1f}%' in caption, caption

    # Charts of two points are no wider than they need, and have a tick at each.
    for chart in browser.js('[...document.querySelectorAll("#scores .js-plotly-plot, #chart-rates")].map((e) => [e.id,'
                            'new Set(e.data.flatMap((t) => t.x)).size, e.clientWidth, e.layout.xaxis.tickvals.length])'):
        if chart[1] == 2:
            assert chart[2] <= 600 and chart[3] == 2, chart

    # The charts: one for every task, with the numbers below; a mixer keeps its colour and marker in all of them.
    charts = browser.js('[...document.querySelectorAll("[id^=chart-score]")].map((e) => e.dataset.task)')
    assert set(charts) == measured, (charts, measured)
    looks = browser.js('[...document.querySelectorAll(".js-plotly-plot")].flatMap((e) => e.data.map((t) =>'
                       '[t.name, t.marker.color + " " + t.marker.symbol]))')
    assert len({tuple(look) for look in looks}) == len({name for name, _ in looks}), looks
    assert len({look for _, look in looks}) == len({name for name, _ in looks}), looks

    # The legend hides a mixer in every chart, or all of them.
    if looks:
        traces = '[...document.querySelectorAll(".js-plotly-plot")].flatMap((e) => e.data.map((t) => t.name))'
        first = looks[0][0]
        browser.js('document.querySelector("#legend .mixer").click()')
        assert first not in browser.js(traces), first
        assert browser.js('document.querySelector("#legend .mixer").ariaPressed') == 'false'
        browser.js('document.querySelector("#legend .all").click()')
        assert browser.js(traces) == [name for name, _ in looks]

    assert browser.js('window.boom') is None
    browser.open(page, scheme='dark')
    browser.assert_clean()
    assert browser.js('document.documentElement.dataset.theme') == 'dark'
    browser.open(page, width=360, height=740)
    browser.assert_clean()
    browser.assert_fits(360)
    # No column of the summary is beyond the edge of a phone.
    beyond = browser.js('[...document.querySelectorAll("#summary td, #summary .sort")].filter((e) =>'
                        'e.getBoundingClientRect().right > 360).map((e) => e.textContent)')
    assert beyond == [], beyond


def shown_mixers(browser):
    return browser.js('[...document.querySelectorAll("#summary tbody th")].map((e) => e.firstChild.textContent)')


def find_browser():
    names = ('chromium', 'chromium-browser', 'google-chrome', 'google-chrome-stable')
    return next((path for path in map(shutil.which, names) if path), None)


def main(program, directory):
    chromium = find_browser()
    if chromium is None:
        print('SKIPPED: no chromium found; install it with: sudo apt-get install -y chromium')
        return SKIPPED
    browser = Browser(chromium, directory / 'profile')
    tests = Tests(program, browser, directory)
    tests.prepare()
    passed, failed = 0, 0
    for name in [name for name in dir(tests) if name.startswith('test_')]:
        try:
            getattr(tests, name)()
            passed += 1
        except Exception as error:  # one test's failure is not the next one's
            failed += 1
            print(f'FAILED {name}: {type(error).__name__}: {error}')
    for name, options in {'light': {}, 'dark': {'scheme': 'dark'}, 'narrow': {'width': 390, 'height': 844}}.items():
        tests.open(**options)
        browser.picture(directory / f'{name}.png')
    browser.close()
    print(f'{passed} passed, {failed} failed')
    return 1 if failed else 0


if __name__ == '__main__':
    if len(sys.argv) > 2:
        kept = pathlib.Path(sys.argv[2])
        kept.mkdir(parents=True, exist_ok=True)
        sys.exit(main(sys.argv[1], kept))
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        sys.exit(main(sys.argv[1], pathlib.Path(temporary)))
