//! SVG plot of latency and bandwidth over message size.

use std::ops::Range;

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::ranged1d::{KeyPointHint, NoDefaultFormatting, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::parameters::Test;
use super::report::{Report, Row, summary};

/// Width of the plot, and height of each panel.
const WIDTH: u32 = 960;
const PANEL: u32 = 440;
/// Height of the title above the panels.
const HEAD: u32 = 56;
/// Margin of the size axis at both ends, in powers of two.
const MARGIN: f64 = 0.3;

/// Colours of write, read, send and atomic, distinguishable for people with colour blindness (Okabe, Ito 2008).
const COLOURS: [RGBColor; 4] = [RGBColor(0, 114, 178), RGBColor(213, 94, 0), RGBColor(0, 158, 115), RGBColor(204, 121, 167)];
const GREY: RGBColor = RGBColor(110, 110, 110);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// Points of one line: size in bytes, value.
type Points = Vec<(f64, f64)>;

/// A logarithmic axis with explicit tick marks.
struct Axis {
    range: Range<f64>,
    marks: Vec<f64>,
}

impl Ranged for Axis {
    type FormatOption = NoDefaultFormatting;
    type ValueType = f64;

    fn map(&self, value: &f64, limit: (i32, i32)) -> i32 {
        let part = (value - self.range.start) / (self.range.end - self.range.start);
        limit.0 + (part * f64::from(limit.1 - limit.0)).round() as i32
    }

    fn key_points<Hint: KeyPointHint>(&self, _hint: Hint) -> Vec<f64> {
        self.marks.clone()
    }

    fn range(&self) -> Range<f64> {
        self.range.clone()
    }
}

impl ValueFormatter<f64> for Axis {}

/// One line of a panel.
struct Line {
    name: String,
    colour: RGBColor,
    dashed: bool,
    points: Points,
}

/// Plots the results of a report.
///
/// # Errors
/// There is no result to plot, or plotting failed.
pub fn svg(report: &Report) -> Result<String> {
    let latency = lines(report, true);
    let bandwidth = lines(report, false);
    let panels: Vec<(&str, &str, &[Line])> =
        [("Latency", "µs", latency.as_slice()), ("Bandwidth", "MiB/s", bandwidth.as_slice())]
            .into_iter()
            .filter(|panel| !panel.2.is_empty())
            .collect();
    if panels.is_empty() {
        return Err(anyhow!("nothing was measured that could be drawn"));
    }
    let mut text = String::new();
    {
        let height = HEAD + PANEL * panels.len() as u32;
        let root = SVGBackend::with_string(&mut text, (WIDTH, height)).into_drawing_area();
        root.fill(&WHITE).map_err(failed)?;
        let head = |size: u32, colour: &RGBColor| ("sans-serif", size).into_font().color(colour);
        root.draw(&Text::new("bareverbs perf", (24, 14), head(20, &BLACK))).map_err(failed)?;
        if let Some(parameters) = &report.parameters {
            root.draw(&Text::new(summary(parameters, &report.devices), (24, 38), head(13, &GREY))).map_err(failed)?;
        }
        let (_, body) = root.split_vertically(HEAD);
        for (area, (title, unit, lines)) in body.split_evenly((panels.len(), 1)).iter().zip(panels) {
            panel(area, title, unit, lines)?;
        }
        root.present().map_err(failed)?;
    }
    Ok(text)
}

fn failed<E: std::error::Error>(error: E) -> anyhow::Error {
    anyhow!("the plot cannot be drawn: {error}")
}

/// Returns the lines of the latency panel (median and 99th percentile) or of the bandwidth panel.
fn lines(report: &Report, latency: bool) -> Vec<Line> {
    let mut lines = Vec::new();
    for (test, colour) in Test::ALL.into_iter().filter(|test| test.is_latency() == latency).zip(COLOURS) {
        let points = |value: fn(&Row) -> Option<f64>| -> Points {
            let rows = report.results.iter().filter(|row| row.test == test);
            let mut points: Points = rows
                .filter_map(|row| Some((f64::from(row.size), value(row)?)))
                .filter(|&(size, value)| size > 0.0 && value > 0.0)
                .collect();
            points.sort_by(|one, two| one.0.total_cmp(&two.0));
            points
        };
        let mut line = |name: String, dashed, points: Points| {
            if !points.is_empty() {
                lines.push(Line { name, colour, dashed, points });
            }
        };
        if latency {
            line(format!("{test}, median"), false, points(|row| row.latency.map(|latency| latency.median)));
            line(format!("{test}, 99 %"), true, points(|row| row.latency.map(|latency| latency.p99)));
        } else {
            line(test.to_string(), false, points(|row| Some(row.mib_per_second)));
        }
    }
    lines
}

/// Draws lines over logarithmic axes.
fn panel(area: &DrawingArea<SVGBackend<'_>, Shift>, title: &str, unit: &str, lines: &[Line]) -> Result<()> {
    let (xs, ys) = (
        bounds(lines.iter().flat_map(|line| &line.points).map(|point| point.0.log2())),
        bounds(lines.iter().flat_map(|line| &line.points).map(|point| point.1.log10())),
    );
    let x = xs.start - MARGIN..xs.end + MARGIN;
    // The value axis leaves room above for the first line of the legend, and has at least one tick mark below.
    let y = (ys.start - 0.1)..(ys.end + 0.15);
    let mut chart = ChartBuilder::on(area)
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .caption(title, ("sans-serif", 17))
        .build_cartesian_2d(Axis { marks: sizes(&x), range: x }, Axis { marks: values(&y), range: y })
        .map_err(failed)?;
    chart
        .configure_mesh()
        .x_desc("message size")
        .y_desc(format!("{} [{unit}]", title.to_lowercase()))
        .x_labels(32)
        .y_labels(64)
        .x_label_formatter(&|log| size_name(log.exp2().round() as u64))
        .y_label_formatter(&|log| value_name(10_f64.powf(*log)))
        .label_style(("sans-serif", 12))
        .axis_desc_style(("sans-serif", 14))
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .axis_style(GREY)
        .draw()
        .map_err(failed)?;
    for line in lines {
        let points: Points = line.points.iter().map(|&(size, value)| (size.log2(), value.log10())).collect();
        let colour = line.colour;
        let stroke = colour.stroke_width(if line.dashed { 1 } else { 2 });
        let drawn = if line.dashed {
            chart.draw_series(DashedLineSeries::new(points.iter().copied(), 5, 4, stroke)).map_err(failed)?
        } else {
            chart.draw_series(LineSeries::new(points.iter().copied(), stroke)).map_err(failed)?
        };
        let dashed = line.dashed;
        drawn.label(line.name.as_str()).legend(move |(x, y)| {
            let pieces: [(i32, i32); 3] = if dashed { [(0, 5), (9, 14), (18, 22)] } else { [(0, 8), (8, 16), (16, 22)] };
            let stroke = colour.stroke_width(if dashed { 1 } else { 2 });
            let [first, second, third] = pieces.map(|(from, to)| PathElement::new(vec![(x + from, y), (x + to, y)], stroke));
            EmptyElement::at((0, 0)) + first + second + third
        });
        if !line.dashed {
            chart.draw_series(points.iter().map(|&point| Circle::new(point, 3, colour.filled()))).map_err(failed)?;
        }
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .margin(10)
        .legend_area_size(28)
        .label_font(("sans-serif", 12))
        .background_style(WHITE.mix(0.9))
        .border_style(GRID)
        .draw()
        .map_err(failed)?;
    Ok(())
}

/// Returns the minimum and maximum of finite values.
fn bounds(values: impl Iterator<Item = f64>) -> Range<f64> {
    let (mut least, mut greatest) = (f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (least, greatest) = (least.min(value), greatest.max(value));
    }
    if least.is_finite() && greatest.is_finite() { least..greatest } else { 0.0..1.0 }
}

/// Returns the powers of two in a range of logarithms; every second one if there are many.
fn sizes(range: &Range<f64>) -> Vec<f64> {
    let step = if range.end - range.start > 16.0 { 2 } else { 1 };
    let all = (range.start.ceil().max(0.0) as u32)..=(range.end.floor().max(0.0) as u32);
    all.filter(|log| log % step == 1 % step).map(f64::from).collect()
}

/// Returns 1, 2 and 5 times the powers of ten in a range of logarithms; only the powers of ten if there are many.
fn values(range: &Range<f64>) -> Vec<f64> {
    let digits: &[f64] = if range.end - range.start > 4.0 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let decades = range.start.floor() as i32..=range.end.ceil() as i32;
    let all = decades.flat_map(|decade| digits.iter().map(move |digit| f64::from(decade) + digit.log10()));
    all.filter(|log| range.contains(log)).collect()
}

fn size_name(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

fn value_name(value: f64) -> String {
    if value >= 0.999 {
        format!("{value:.0}")
    } else {
        format!("{:.*}", (-value.log10()).ceil().clamp(1.0, 9.0) as usize, value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::parameters::Parameters;
    use super::super::statistics::Latency;
    use super::*;

    #[test]
    fn tick_marks_have_labels() {
        assert_eq!(
            [1, 512, 1024, 65_536, 1 << 20, 8 << 20].map(size_name),
            ["1 B", "512 B", "1 KiB", "64 KiB", "1 MiB", "8 MiB"]
        );
        assert_eq!([0.05, 0.2, 1.0, 50.0, 2000.0].map(value_name), ["0.05", "0.2", "1", "50", "2000"]);
        assert_eq!(sizes(&(0.7..4.3)), [1.0, 2.0, 3.0, 4.0]);
        assert_eq!(sizes(&(0.7..23.3)).len(), 12);
        let marks: Vec<String> = values(&(0.6..2.1)).iter().map(|log| value_name(10_f64.powf(*log))).collect();
        assert_eq!(marks, ["5", "10", "20", "50", "100"]);
    }

    #[test]
    fn a_plot_has_the_lines_of_the_results_alone() {
        let latency = Latency { samples: 3, min: 1.0, median: 2.0, average: 2.0, max: 9.0, stdev: 0.1, p99: 8.0, p999: 9.0 };
        let rows = [2, 64, 4096].map(|size| {
            let row = Row { test: Test::SendLat, size, ..Row::default() };
            Row { latency: Some(latency), ..row }
        });
        let mut report = Report { results: rows.to_vec(), parameters: Some(Parameters::default()), ..Report::default() };
        let text = svg(&report).unwrap();
        for part in ["<svg", "send-lat, median", "send-lat, 99 %", "message size", "latency [µs]", "4 KiB"] {
            assert!(text.contains(part), "no {part:?} in {text}");
        }
        assert!(!text.contains("MiB/s") && !text.contains("write-lat"));
        // A single point, and a value that has no logarithm.
        report.results = vec![Row { test: Test::WriteBw, size: 8, mib_per_second: 3.0, ..Row::default() }, Row::default()];
        assert!(svg(&report).unwrap().contains("bandwidth [MiB/s]"));
        report.results.clear();
        assert!(svg(&report).is_err());
    }
}
