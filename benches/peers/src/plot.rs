//! The minima as horizontal bars, a panel for each figure, in an image that follows the reader's light or dark scheme.

use crate::report::{self, Row};

// Sizes in pixels.
const MARGIN: f64 = 20.0;
const PANEL_WIDTH: f64 = 430.0;
const PANEL_GAP: f64 = 30.0;
const TITLE_HEIGHT: f64 = 12.0;
const LINE_HEIGHT: f64 = 20.0;
const BAR_HEIGHT: f64 = 13.0;
const NAME_WIDTH: f64 = 90.0;
const FIGURE_WIDTH: f64 = 70.0;
const LONGEST_BAR: f64 = PANEL_WIDTH - NAME_WIDTH - FIGURE_WIDTH;
/// What is left of a bar behind the gap that says it was cut.
const STUMP: f64 = 8.0;
const STUMP_GAP: f64 = 3.0;
const TEXT_GAP: f64 = 6.0;

const COLUMNS: usize = 2;

/// How many times as long as its panel's median a bar may be before it is cut, so that one slow runtime does not
/// flatten the others.
const LONGEST_OVER_MEDIAN: f64 = 2.5;

/// The runtime whose bars stand out.
const HIGHLIGHTED: &str = "aioco";

/// Colours for the reader's scheme. The image brings its background along: a page may be dark where the reader's
/// scheme is light, or the other way round.
const STYLE: &str = "\
.page { fill: #ffffff }
text { font: 12px system-ui, sans-serif; fill: #1f2328 }
.title { font-weight: 600 }
.small { font-size: 11px; fill: #59636e }
.peer { fill: #9aa4af }
.own { fill: #0969da }
@media (prefers-color-scheme: dark) {
  .page { fill: #0d1117 }
  text { fill: #e6edf3 }
  .small { fill: #9198a1 }
  .peer { fill: #656c76 }
  .own { fill: #4493f8 }
}";

/// Draws the rows, which are ordered by figure.
pub fn draw(rows: &[Row]) -> String {
    let panels: Vec<&[Row]> = rows.chunk_by(|one, next| one.case == next.case).collect();
    let mut canvas = Canvas::default();
    let mut top = MARGIN;
    for line in panels.chunks(COLUMNS) {
        let mut bottom = top;
        for (column, panel) in line.iter().enumerate() {
            let left = MARGIN + column as f64 * (PANEL_WIDTH + PANEL_GAP);
            bottom = f64::max(bottom, canvas.panel(left, top, panel));
        }
        top = bottom + PANEL_GAP;
    }
    let footer = format!("Minima; shorter is better. Interrupted bars are longer than drawn. {}", report::machine());
    canvas.text("small", MARGIN, top, &footer);

    let columns = panels.len().clamp(1, COLUMNS) as f64;
    let width = 2.0 * MARGIN + columns * (PANEL_WIDTH + PANEL_GAP) - PANEL_GAP;
    canvas.into_svg(width, top + MARGIN)
}

/// Elements of an image.
#[derive(Default)]
struct Canvas {
    elements: String,
}

impl Canvas {
    /// Draws a figure's bars with their title, and returns where they end.
    fn panel(&mut self, left: f64, top: f64, rows: &[Row]) -> f64 {
        let title = format!("{}, {}", rows[0].case, rows[0].unit.label());
        self.text("title", left, top + TITLE_HEIGHT, &title);
        let scale = Scale::of(rows);
        let mut line = top + TITLE_HEIGHT;
        for row in rows {
            line += LINE_HEIGHT;
            self.text("name", left, line, row.runtime);
            let class = if row.runtime == HIGHLIGHTED { "own" } else { "peer" };
            let end = self.bar(class, left + NAME_WIDTH, line, &scale, row.summary.min);
            let figure = row.unit.format(row.summary.min);
            self.text("figure", end + TEXT_GAP, line, &figure);
        }
        line
    }

    /// Draws a bar above a line, cut if it is too long, and returns where it ends.
    fn bar(&mut self, class: &str, left: f64, line: f64, scale: &Scale, figure: f64) -> f64 {
        let top = line - BAR_HEIGHT + 2.0;
        match scale.length(figure) {
            Some(length) => {
                self.rectangle(class, left, top, length);
                left + length
            }
            None => {
                let stump = left + LONGEST_BAR - STUMP;
                self.rectangle(class, left, top, LONGEST_BAR - STUMP - STUMP_GAP);
                self.rectangle(class, stump, top, STUMP);
                left + LONGEST_BAR
            }
        }
    }

    fn rectangle(&mut self, class: &str, left: f64, top: f64, width: f64) {
        self.elements.push_str(&format!(
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{top:.1}\" \
             width=\"{width:.1}\" height=\"{BAR_HEIGHT}\" rx=\"1.5\"/>\n"
        ));
    }

    fn text(&mut self, class: &str, left: f64, line: f64, text: &str) {
        let text = text.replace('&', "&amp;").replace('<', "&lt;");
        self.elements.push_str(&format!("<text class=\"{class}\" x=\"{left:.1}\" y=\"{line:.1}\">{text}</text>\n"));
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

/// How long a panel's bars are.
struct Scale {
    /// The figure of the longest bar.
    longest: f64,
}

impl Scale {
    fn of(rows: &[Row]) -> Self {
        let mut figures: Vec<f64> = rows.iter().map(|row| row.summary.min).collect();
        figures.sort_by(f64::total_cmp);
        let limit = figures[figures.len() / 2] * LONGEST_OVER_MEDIAN;
        let longest = figures.into_iter().rfind(|&figure| figure <= limit);
        Self { longest: longest.unwrap_or(limit) }
    }

    /// The length of a figure's bar, unless it has to be cut.
    fn length(&self, figure: f64) -> Option<f64> {
        if figure > self.longest {
            None
        } else if self.longest > 0.0 {
            Some(figure / self.longest * LONGEST_BAR)
        } else {
            Some(0.0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Summary;
    use crate::report::Unit;

    fn rows(figures: &[f64]) -> Vec<Row> {
        figures
            .iter()
            .map(|&min| Row {
                runtime: "a<b",
                case: String::from("case"),
                summary: Summary { min, median: min },
                unit: Unit::Nanoseconds,
            })
            .collect()
    }

    #[test]
    fn only_outliers_are_cut() {
        let scale = Scale::of(&rows(&[1.0, 2.0, 4.0, 100.0]));
        assert_eq!(scale.length(4.0), Some(LONGEST_BAR));
        assert_eq!(scale.length(2.0), Some(LONGEST_BAR / 2.0));
        assert_eq!(scale.length(100.0), None);
    }

    #[test]
    fn nothing_is_drawn_of_nothing() {
        assert_eq!(Scale::of(&rows(&[0.0, 0.0])).length(0.0), Some(0.0));
        assert!(!draw(&[]).contains("class=\"peer\""));
    }

    #[test]
    fn names_are_escaped() {
        assert!(draw(&rows(&[1.0])).contains(">a&lt;b<"));
    }
}
