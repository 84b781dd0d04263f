//! IOPS and CPU time per I/O against depth, in an image that follows the reader's light or dark scheme: two panels for
//! each target and kind of request, a line for each mode.

use std::fmt::Write;

use crate::measure::Row;
use crate::mode::Mode;

// Sizes in pixels.
const MARGIN: f64 = 20.0;
const PANEL_WIDTH: f64 = 420.0;
const PANEL_HEIGHT: f64 = 240.0;
const GAP: f64 = 30.0;
/// Room in a panel for its title, its scale on the left, and the depths below.
const TITLE_HEIGHT: f64 = 26.0;
const SCALE_WIDTH: f64 = 52.0;
const DEPTHS_HEIGHT: f64 = 34.0;
const LEGEND_HEIGHT: f64 = 20.0;
const LEGEND_WIDTH: f64 = 110.0;

/// Lines of a scale, at least.
const LEAST_TICKS: f64 = 4.0;

/// Colours for the reader's scheme; the image brings its background along.
const STYLE: &str = "\
.page { fill: #ffffff }
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.end { text-anchor: end }
.middle { text-anchor: middle }
.grid { stroke: #d1d9e0; stroke-width: 1 }
polyline { fill: none; stroke-width: 2; stroke-linejoin: round }
.coroutine { stroke: #0969da; fill: #0969da }
.bypass { stroke: #1a7f37; fill: #1a7f37 }
.raw-ring { stroke: #9a6700; fill: #9a6700 }
.raw-aio { stroke: #bf3989; fill: #bf3989 }
.pread { stroke: #8250df; fill: #8250df }
polyline.coroutine, polyline.bypass, polyline.raw-ring, polyline.raw-aio, polyline.pread { fill: none }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 }
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .grid { stroke: #3d444d }
}";

/// Draws the rows, which are in order of targets, kinds of requests, and depths.
pub fn draw(rows: &[Row]) -> String {
    let same = |one: &Row, next: &Row| (one.target, one.op) == (next.target, next.op);
    let mut canvas = Canvas::default();
    let mut top = MARGIN;
    for rows in rows.chunk_by(same) {
        let title = format!("{}, {}", rows[0].target, rows[0].op);
        let right = MARGIN + PANEL_WIDTH + GAP;
        canvas.panel(MARGIN, top, &format!("{title}: I/Os per second"), rows, |row| row.iops);
        canvas.panel(right, top, &format!("{title}: CPU time per I/O, ns"), rows, |row| row.cpu_ns);
        top += PANEL_HEIGHT + GAP;
    }
    canvas.legend(top, &modes(rows));
    canvas.into_svg(2.0 * MARGIN + 2.0 * PANEL_WIDTH + GAP, top + LEGEND_HEIGHT + MARGIN)
}

fn modes(rows: &[Row]) -> Vec<Mode> {
    let mut modes = Vec::new();
    for row in rows {
        if !modes.contains(&row.mode) {
            modes.push(row.mode);
        }
    }
    modes
}

/// Elements of an image.
#[derive(Default)]
struct Canvas {
    elements: String,
}

impl Canvas {
    fn panel(&mut self, left: f64, top: f64, title: &str, rows: &[Row], figure: impl Fn(&Row) -> f64) {
        self.text("title", left, top + 12.0, title);
        let (start, end) = (left + SCALE_WIDTH, left + PANEL_WIDTH - 10.0);
        let (ceiling, floor) = (top + TITLE_HEIGHT, top + PANEL_HEIGHT - DEPTHS_HEIGHT);
        let tick = tick(rows.iter().map(&figure).fold(0.0, f64::max));
        let most = rows.iter().map(&figure).fold(tick, f64::max);
        let y = |figure: f64| floor - figure / most * (floor - ceiling);
        for number in 0..=(most / tick) as u32 {
            let value = tick * f64::from(number);
            self.line("grid", (start, y(value)), (end, y(value)));
            self.text("small end", start - 6.0, y(value) + 4.0, &short(value));
        }
        // Depths are of all sizes: their order is their place.
        let mut depths: Vec<_> = rows.iter().map(|row| row.depth).collect();
        depths.sort_unstable();
        depths.dedup();
        let gaps = (depths.len() - 1).max(1) as f64;
        let x = |depth: usize| {
            let place = depths.iter().position(|&other| other == depth).unwrap_or(0);
            start + 10.0 + (end - start - 20.0) * place as f64 / gaps
        };
        for &depth in &depths {
            self.text("small middle", x(depth), floor + 16.0, &depth.to_string());
        }
        self.text("small middle", (start + end) / 2.0, floor + 31.0, "depth");
        for mode in modes(rows) {
            let mut of_mode: Vec<_> = rows.iter().filter(|row| row.mode == mode).collect();
            of_mode.sort_by_key(|row| row.depth);
            let points: Vec<_> = of_mode.into_iter().map(|row| (x(row.depth), y(figure(row)))).collect();
            self.curve(mode, &points);
        }
    }

    fn legend(&mut self, top: f64, modes: &[Mode]) {
        for (number, &mode) in modes.iter().enumerate() {
            let left = MARGIN + SCALE_WIDTH + number as f64 * LEGEND_WIDTH;
            self.curve(mode, &[(left, top + 8.0), (left + 22.0, top + 8.0)]);
            self.text("name", left + 30.0, top + 12.0, &mode.to_string());
        }
    }

    fn curve(&mut self, mode: Mode, points: &[(f64, f64)]) {
        let list: Vec<_> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        self.push(format_args!("<polyline class=\"{mode}\" points=\"{}\"/>", list.join(" ")));
        for (x, y) in points {
            self.push(format_args!("<circle class=\"{mode}\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"2.5\"/>"));
        }
    }

    fn line(&mut self, class: &str, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        self.push(format_args!(
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        ));
    }

    fn text(&mut self, class: &str, left: f64, line: f64, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.push(format_args!("<text class=\"{class}\" x=\"{left:.1}\" y=\"{line:.1}\">{text}</text>"));
    }

    fn push(&mut self, element: std::fmt::Arguments<'_>) {
        writeln!(self.elements, "{element}").expect("a string takes all");
    }

    fn into_svg(self, width: f64, height: f64) -> String {
        format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
             viewBox=\"0 0 {width} {height}\">\n<style>\n{STYLE}\n</style>\n\
             <rect class=\"page\" width=\"100%\" height=\"100%\" rx=\"6\"/>\n{}</svg>\n",
            self.elements
        )
    }
}

/// The distance of lines of a scale up to `most`: one, two or five of a power of ten.
fn tick(most: f64) -> f64 {
    if !most.is_normal() {
        return 1.0;
    }
    let rough = most / LEAST_TICKS;
    let power = 10f64.powf(rough.log10().floor());
    let step = [5.0, 2.0, 1.0].into_iter().find(|step| step * power <= rough);
    step.unwrap_or(1.0) * power
}

/// A number in few characters.
fn short(number: f64) -> String {
    match number {
        1e6.. => format!("{} M", number / 1e6),
        1e4.. => format!("{} k", number / 1e3),
        _ => format!("{number}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_have_round_numbers() {
        assert_eq!(tick(100.0), 20.0);
        assert_eq!(tick(40.0), 10.0);
        assert_eq!(tick(1_000_000.0), 200_000.0);
        assert_eq!(tick(0.0), 1.0);
        assert_eq!(short(200_000.0), "200 k");
        assert_eq!(short(1_500_000.0), "1.5 M");
    }
}
