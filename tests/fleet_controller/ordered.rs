// SPDX-License-Identifier: Apache-2.0
//! JSON whose keys stay in order: the deployment ids of the recordings are over options as their files have them.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// A value with its keys in the order of the text.
#[derive(Clone, Debug)]
pub enum Ordered {
    /// An object.
    Object(Vec<(String, Ordered)>),
    /// A list.
    List(Vec<Ordered>),
    /// All else.
    Plain(Value),
}

impl Ordered {
    /// A field of an object.
    pub fn get(&self, key: &str) -> Option<&Ordered> {
        let Ordered::Object(fields) = self else { return None };
        fields.iter().find(|(name, _)| name == key).map(|(_, value)| value)
    }

    /// The entries of a list; none of anything else.
    pub fn items(&self) -> &[Ordered] {
        if let Ordered::List(items) = self { items } else { &[] }
    }

    /// A text; empty for anything else.
    pub fn text(&self) -> &str {
        if let Ordered::Plain(Value::String(text)) = self { text } else { "" }
    }
}

impl fmt::Display for Ordered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ordered::Object(fields) => {
                f.write_str("{")?;
                for (index, (key, value)) in fields.iter().enumerate() {
                    let comma = if index > 0 { "," } else { "" };
                    write!(f, "{comma}{}:{value}", Value::from(key.as_str()))?;
                }
                f.write_str("}")
            }
            Ordered::List(items) => {
                f.write_str("[")?;
                for (index, value) in items.iter().enumerate() {
                    write!(f, "{}{value}", if index > 0 { "," } else { "" })?;
                }
                f.write_str("]")
            }
            Ordered::Plain(value) => value.fmt(f),
        }
    }
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Ordered, D::Error> {
        from.deserialize_any(Reader)
    }
}

struct Reader;

impl<'de> Visitor<'de> for Reader {
    type Value = Ordered;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Ordered, E> {
        Ok(Ordered::Plain(Value::Null))
    }

    fn visit_bool<E>(self, value: bool) -> Result<Ordered, E> {
        Ok(Ordered::Plain(value.into()))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Ordered, E> {
        Ok(Ordered::Plain(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Ordered, E> {
        Ok(Ordered::Plain(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Ordered, E> {
        Ok(Ordered::Plain(value.into()))
    }

    fn visit_str<E>(self, value: &str) -> Result<Ordered, E> {
        Ok(Ordered::Plain(value.into()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Ordered, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = from.next_element()? {
            items.push(item);
        }
        Ok(Ordered::List(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Ordered, A::Error> {
        let mut fields = Vec::new();
        while let Some(field) = from.next_entry()? {
            fields.push(field);
        }
        Ok(Ordered::Object(fields))
    }
}

#[test]
fn a_text_comes_back_as_it_was() {
    let text = r#"{"z":1,"a":[true,null,{"c":"\"x\"","b":-2.5}],"m":{}}"#;
    let read: Ordered = serde_json::from_str(text).unwrap();
    assert_eq!(read.to_string(), text);
    assert_eq!((read.get("z").unwrap().to_string(), read.get("a").unwrap().items().len()), ("1".into(), 3));
}
