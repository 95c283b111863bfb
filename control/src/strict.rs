//! Does a body of JSON say each thing once?
//!
//! RFC 8259 leaves it open which of two values counts where a key stands twice in an object; readers differ, and
//! `serde_json` takes the last one. Here it is refused, as TOML refuses it: nothing written is ignored.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// A value in whose objects each key stands once.
#[derive(PartialEq, Debug)]
pub struct Strict(pub Value);

impl<'de> Deserialize<'de> for Strict {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strict, D::Error> {
        deserializer.deserialize_any(Values).map(Strict)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value of JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, flag: bool) -> Result<Value, E> {
        Ok(Value::Bool(flag))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Value, E> {
        Ok(Value::Number(number.into()))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Value, E> {
        Ok(Number::from_f64(number).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, text: &str) -> Result<Value, E> {
        Ok(Value::String(text.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(Strict(value)) = items.next_element()? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Value, A::Error> {
        let mut values = Map::new();
        while let Some((key, Strict(value))) = entries.next_entry::<String, Strict>()? {
            if values.contains_key(&key) {
                let key = mqfq_config::text::shown(&key);
                return Err(A::Error::custom(format_args!("{key} stands here for the second time")));
            }
            values.insert(key, value);
        }
        Ok(Value::Object(values))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_what_serde_json_reads() {
        for text in ["null", "true", "-1", "18446744073709551615", "1.5", "99999999999999999999", r#""a""#, "[1,[]]"] {
            let Strict(value) = serde_json::from_str(text).unwrap();
            assert_eq!(value, serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
        let text = r#"{"weight":3,"cost":{"read":{"base":1},"write":{"base":1}}}"#;
        assert_eq!(serde_json::from_str::<Strict>(text).unwrap().0, serde_json::from_str::<Value>(text).unwrap());
        for text in ["", "{", "[1,]", "nul", "1e999"] {
            let (strict, value) = (serde_json::from_str::<Strict>(text), serde_json::from_str::<Value>(text));
            assert_eq!(strict.unwrap_err().to_string(), value.unwrap_err().to_string(), "{text}");
        }
    }

    #[test]
    fn a_key_that_stands_twice_is_refused_at_any_depth() {
        for (text, at) in [
            (r#"{"weight":1,"weight":2}"#, "weight stands here for the second time at line 1 "),
            ("{\"a\":[{\"b\":1,\n\"b\":1}]}", "b stands here for the second time at line 2 "),
        ] {
            let error = serde_json::from_str::<Strict>(text).unwrap_err();
            assert!(error.is_data() && error.to_string().starts_with(at), "{error}");
        }
    }
}
