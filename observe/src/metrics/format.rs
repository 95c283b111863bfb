//! In which of its two text formats does a client take `/metrics`?
//!
//! The server prefers OpenMetrics, and sends it to a client whose `Accept` names it: Prometheus does. A client that
//! names no format (`curl`: `*/*`) gets the Prometheus text format, which every tool reads.

use axum::http::{HeaderMap, header};

/// A text format of metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// OpenMetrics 1.0: a counter's family has a name without `_total`, a unit has a line, `# EOF` ends the text.
    OpenMetrics,
    /// The Prometheus text format 0.0.4.
    Prometheus,
}

/// Versions of OpenMetrics that the text conforms to.
const VERSIONS: [&str; 2] = ["1.0.0", "0.0.1"];

impl Format {
    /// The value of the header `Content-Type`.
    pub const fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }

    /// The format that `Accept` gives the higher quality (RFC 9110, 12.5.1). OpenMetrics must be named; without it, and
    /// without the header, the text is Prometheus's.
    pub fn accepted(headers: &HeaderMap) -> Format {
        let (mut named, mut plain) = (0, None);
        let texts = headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
        for range in texts.flat_map(|text| text.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let media_type = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut quality, mut is_known) = (1000, true);
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match key.trim().to_ascii_lowercase().as_str() {
                    "q" => quality = thousandths(value.trim()),
                    "version" => is_known = VERSIONS.contains(&value.trim().trim_matches('"')),
                    _ => {}
                }
            }
            match media_type.as_str() {
                "application/openmetrics-text" if is_known => named = quality.max(named),
                "text/plain" => plain = plain.max(Some(quality)),
                _ => {}
            }
        }
        if named > 0 && plain.is_none_or(|plain| named >= plain) { Format::OpenMetrics } else { Format::Prometheus }
    }
}

/// A quality in thousandths; one that cannot be read is 0.
fn thousandths(text: &str) -> u32 {
    text.parse::<f64>().ok().filter(|quality| (0.0..=1.0).contains(quality)).map_or(0, |q| (q * 1000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::tests::scrape;
    use axum::http::HeaderValue;
    use mqfq_testing::tools::need;
    use std::io::Write;
    use std::process::{Command, Stdio};

    #[test]
    fn promtool_finds_no_fault_with_the_prometheus_text() {
        need!("promtool");
        let mut promtool = Command::new("promtool");
        promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut run = promtool.spawn().unwrap();
        run.stdin.take().unwrap().write_all(scrape(3).text(Format::Prometheus).as_bytes()).unwrap();
        let run = run.wait_with_output().unwrap();
        let said = format!("{}{}", String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success() && said.is_empty(), "{}: {said}", run.status);
    }

    #[test]
    fn both_formats_have_the_same_samples() {
        let [open, plain] = [Format::OpenMetrics, Format::Prometheus].map(|format| scrape(2).text(format));
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
        assert_eq!(samples(&open), samples(&plain));
        assert!(open.contains("# TYPE mqfq_tenant_requests counter\n") && open.ends_with("# EOF\n"));
        assert!(plain.contains("# TYPE mqfq_tenant_requests_total counter\n"));
        assert!(!plain.contains("# UNIT") && !plain.contains("# EOF"));
    }

    #[test]
    fn open_metrics_is_for_a_client_that_names_it_and_likes_it_best() {
        use Format::{OpenMetrics, Prometheus};
        let of_prometheus_3 = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                               application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
                               text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for (accept, format) in [
            ("", Prometheus),
            ("*/*", Prometheus),
            ("text/html, application/xhtml+xml, */*;q=0.8", Prometheus),
            (of_prometheus_3, OpenMetrics),
            ("Application/OpenMetrics-Text; charset=utf-8", OpenMetrics),
            ("application/openmetrics-text; version=\"1.0.0\", text/plain", OpenMetrics),
            ("application/openmetrics-text; q=0.2, text/plain; q=0.3", Prometheus),
            ("application/openmetrics-text; q=0", Prometheus),
            ("application/openmetrics-text; version=2.0.0, */*", Prometheus),
            ("application/openmetrics-text; q=lots", Prometheus),
        ] {
            let headers = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static(accept))]);
            assert_eq!(Format::accepted(&headers), format, "{accept:?}");
        }
        assert_eq!(Format::accepted(&HeaderMap::new()), Prometheus);
    }
}
