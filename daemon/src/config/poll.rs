//! `poll` of an export: the time for which a queue looks for its guest's next request.

use mqfq_config::{ConfigError, Section, duration};
use mqfq_front::FRONT_ENDS;
use mqfq_front::export::Poll;
use std::ops::RangeInclusive;

/// The key.
pub const POLL: &str = "poll";

/// Times that it may be, ns.
const TIMES_NS: RangeInclusive<u64> = 1_000..=10_000_000;

/// The one of a section.
pub(super) fn read(section: &Section<'_, '_>) -> Result<Poll, ConfigError> {
    let Some(entry) = section.get(POLL) else { return Ok(Poll::Auto) };
    let mut polled = FRONT_ENDS.iter().filter(|front_end| front_end.polls()).map(|front_end| front_end.name());
    if !polled.clone().any(|name| section.get(name).is_some()) {
        let name = polled.next().unwrap_or("no front end");
        let without = format!("is for {name} alone, which this export has not, allowed is no {POLL}");
        return Err(entry.place().error(without));
    }
    match &*entry.text("\"auto\", \"never\", or a duration (\"50us\")")? {
        "auto" => Ok(Poll::Auto),
        "never" => Ok(Poll::For(0)),
        text if duration::parse(text).is_none() => {
            let allowed = "allowed are auto, never, or a duration of 1us to 10ms";
            Err(entry.place().error(format!("{text:?} is not known, {allowed}")))
        }
        _ => Ok(Poll::For(entry.duration_ns(TIMES_NS)?)),
    }
}

/// As a config says it.
pub fn shown(poll: Poll) -> String {
    match poll {
        Poll::Auto => "auto".into(),
        Poll::For(0) => "never".into(),
        Poll::For(ns) => duration::display(ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn an_export_is_polled_as_long_as_that_pays_never_or_for_a_time() {
        let served = |by: &str, key: &str| {
            let text = format!(
                "[device.d]\nkind = \"memory\"\nsize = \"1MiB\"\n[tenant.t]\n[export.e]\ndevice = \"d\"\ntenant = \"t\"\n\
                 {by} = \"unix:/a\"\n{key}"
            );
            Config::parse("c.toml", &text).map(|config| config.exports[0].poll).map_err(|error| error.to_string())
        };
        let config = |key: &str| served("vhost-user", key);
        assert_eq!((config(""), served("nbd", "")), (Ok(Poll::Auto), Ok(Poll::Auto)));
        let without = "c.toml:9: export.e.poll: is for vhost-user alone, which this export has not, allowed is no poll";
        assert_eq!(served("nbd", "poll = \"never\""), Err(without.to_owned()));
        for (text, poll) in [("auto", Poll::Auto), ("never", Poll::For(0)), ("50us", Poll::For(50_000))] {
            assert_eq!(config(&format!("poll = \"{text}\"")), Ok(poll));
            assert_eq!(shown(poll), text);
        }
        for (value, why) in [
            ("\"often\"", "\"often\" is not known, allowed are auto, never, or a duration of 1us to 10ms"),
            ("\"0\"", "\"0\" is out of range, allowed is 1us to 10ms"),
            ("\"11ms\"", "\"11ms\" is out of range, allowed is 1us to 10ms"),
        ] {
            assert_eq!(config(&format!("poll = {value}")), Err(format!("c.toml:9: export.e.poll: {why}")));
        }
    }
}
