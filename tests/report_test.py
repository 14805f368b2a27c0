#!/usr/bin/env python3
"""Trains a small run with the real program, makes its pages and reads them in headless Chromium.

report_test.py PROGRAM [DIRECTORY]   keeps the run, the pages and screenshots in DIRECTORY when one is named
"""
import base64
import fcntl
import json
import os
import pathlib
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

    def wait(self, expression, seconds=30):
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
        assert self.tamis('report', self.run).strip() == str(self.run / 'report.html')

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
        assert 'non-zero' in self.tamis('inspect', self.run, '--text', '-', stdin='A=1\n')

    def test_wrong_use_is_told_in_one_line(self):
        plain = self.directory / 'plain.txt'
        plain.write_text('text')
        for arguments, code in [(['inspect'], 2), (['inspect', self.run, '--psi', 4], 2), (['inspect', plain], 3),
                                (['inspect', self.directory / 'nowhere'], 3), (['report', self.directory], 3),
                                (['report', plain], 3), (['inspect', self.run, '--text', self.directory / 'none'], 3),
                                (['inspect', self.run, '--text', '-'], 3),
                                (['report', self.run, '--output', plain / 'report.html'], 30)]:
            complaint = self.tamis(*arguments, code=code, stdin='')
            assert complaint.count('\n') == 1 and complaint.startswith('tamis: '), (arguments, complaint)

    # The report.

    def test_report_draws_without_errors_and_loads_nothing(self):
        self.open().assert_clean()

    def test_report_has_every_chart(self):
        browser = self.open()
        for chart in ('loss', 'gradient', 'rate', 'speed', 'windows', 'accepts', 'abc', 'scatter'):
            traces = browser.js(f'(document.getElementById("chart-{chart}").data || []).length')
            drawn = browser.js(f'document.querySelectorAll("#chart-{chart} .main-svg").length')
            assert traces and drawn, (chart, traces, drawn)
        assert browser.js('document.getElementById("chart-loss").data.at(-1).name') == 'validation, abc_digits'
        assert browser.js('document.getElementById("chart-scatter").data[0].x.length') == 8
        sections = browser.js('[...document.querySelectorAll("main > section:not([hidden])")].map((s) => s.id)')
        for section in ('training', 'retrieval', 'relevance', 'tiles', 'samples', 'provenance'):
            assert section in sections, sections

    def test_heat_map_tells_wilson_intervals_on_hover(self):
        browser = self.open()
        browser.hover('#chart-abc .nsewdrag', 0.25, 0.25)
        browser.wait('document.querySelector("#chart-abc .hoverlayer").textContent.includes("Wilson")', 5)
        label = browser.js('document.querySelector("#chart-abc .hoverlayer").textContent')
        assert '236 tokens' in label and 'of 2' in label, label

    def test_maps_are_drawn_and_follow_the_pointer(self):
        browser = self.open(fragment='tile=1.3')
        assert browser.js('document.querySelectorAll(".thumbnail canvas").length') == 8
        assert browser.js('document.getElementById("tile-title").textContent') == 'Layer 1, head 3'
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
        browser.wait('document.getElementById("pair").textContent.includes("query 33")', 5)

    def test_theme_follows_the_system_and_the_button(self):
        browser = self.open(scheme='dark')
        assert browser.js('document.documentElement.dataset.theme') == 'dark'
        dark = browser.js('document.getElementById("chart-loss").layout.font.color')
        browser.js('document.getElementById("theme").click()')
        assert browser.js('document.documentElement.dataset.theme') == 'light'
        browser.wait(f'document.getElementById("chart-loss").layout.font.color !== "{dark}"', 5)
        browser.js('localStorage.clear()')

    def test_text_from_outside_stays_text(self):
        browser = self.open()
        assert browser.js('window.boom') is None
        assert HOSTILE in browser.js('document.getElementById("sample-text").textContent')
        assert '</script>' in browser.js('document.getElementById("recipe").textContent')
        assert browser.js('document.querySelectorAll("main b").length === document.querySelectorAll('
                          '".numbers b, .context b").length')

    def test_fits_a_phone(self):
        self.open(width=360, height=740).assert_fits(360)

    def test_controls_have_names(self):
        self.open().assert_controls_have_names()

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
        assert browser.js('document.getElementById("relevance").hidden && document.getElementById("retrieval").hidden')
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
