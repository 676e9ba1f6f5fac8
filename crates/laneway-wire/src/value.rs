//! Value types that the request bodies share.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

use serde::de::value::MapAccessDeserializer;
use serde::de::{Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};

/// A string, borrowed from the body whenever it holds no escapes (serde copies the `Cow` inside an `Option`).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Text<'a>(pub Cow<'a, str>);

impl Text<'_> {
    /// The string.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Deref for Text<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl<'a> From<&'a str> for Text<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl From<String> for Text<'_> {
    fn from(text: String) -> Self {
        Self(Cow::Owned(text))
    }
}

impl Serialize for Text<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Text<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TextVisitor;

        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Cow<'de, str>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Cow::Borrowed(text))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text.to_owned()))
            }

            fn visit_string<E>(self, text: String) -> Result<Self::Value, E> {
                Ok(Cow::Owned(text))
            }
        }

        deserializer.deserialize_str(TextVisitor).map(Self)
    }
}

/// A JSON number without a fraction; what is beyond `i64` saturates, so that a range check can name the field.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Int(pub i64);

impl Serialize for Int {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_i64(self.0)
    }
}

impl<'de> Deserialize<'de> for Int {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct IntVisitor;

        impl Visitor<'_> for IntVisitor {
            type Value = i64;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an integer")
            }

            fn visit_i64<E>(self, number: i64) -> Result<i64, E> {
                Ok(number)
            }

            fn visit_u64<E>(self, number: u64) -> Result<i64, E> {
                Ok(i64::try_from(number).unwrap_or(i64::MAX))
            }

            fn visit_f64<E: serde::de::Error>(self, number: f64) -> Result<i64, E> {
                if number.fract() != 0.0 {
                    return Err(E::invalid_type(serde::de::Unexpected::Float(number), &self));
                }
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "`as` saturates, which is what is wanted"
                )]
                Ok(number as i64)
            }
        }

        deserializer.deserialize_any(IntVisitor).map(Self)
    }
}

/// A field that may be absent, `null` or have a value, where the three differ.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Given<T> {
    /// The key is not there.
    #[default]
    Absent,
    /// `null`.
    Null,
    /// A value.
    Value(T),
}

impl<T> Given<T> {
    /// Whether the key is not there; such fields are left out when a request is written.
    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// The value, if there is one.
    pub fn value(self) -> Option<T> {
        match self {
            Self::Absent | Self::Null => None,
            Self::Value(value) => Some(value),
        }
    }

    /// This one, or `other` when the key is not there.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        if self.is_absent() { other } else { self }
    }
}

impl<T: Serialize> Serialize for Given<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Absent | Self::Null => serializer.serialize_none(),
            Self::Value(value) => value.serialize(serializer),
        }
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Given<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(Option::deserialize(deserializer)?.map_or(Self::Null, Self::Value))
    }
}

/// A value read from a JSON object and nothing else. What serde derives for a struct also takes an array of its fields in
/// order, which no request means: bodies, and the objects in their arrays, are read through this.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Object<T>(pub T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Object<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ObjectVisitor<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectVisitor<T> {
            type Value = T;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
                T::deserialize(MapAccessDeserializer::new(map))
            }
        }

        deserializer.deserialize_map(ObjectVisitor(PhantomData)).map(Self)
    }
}

/// Reads an array of objects; for `#[serde(deserialize_with)]`.
pub(crate) fn objects<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    struct ObjectsVisitor<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for ObjectsVisitor<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of objects")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Vec<T>, A::Error> {
            let mut objects = Vec::new();
            while let Some(Object(object)) = array.next_element()? {
                objects.push(object);
            }
            Ok(objects)
        }
    }

    deserializer.deserialize_seq(ObjectsVisitor(PhantomData))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_without_escapes_is_borrowed() {
        let body = r#"["plain","es\u0063aped"]"#;
        let texts: Vec<Option<Text<'_>>> = serde_json::from_str(body).unwrap();
        assert!(matches!(texts[0], Some(Text(Cow::Borrowed("plain")))));
        assert_eq!(texts[1].as_deref(), Some("escaped"));
    }

    #[test]
    fn integers_saturate_and_fractions_are_refused() {
        let read = |text: &str| serde_json::from_str::<Int>(text).map(|int| int.0).ok();
        assert_eq!(read("300"), Some(300));
        assert_eq!(read("300.0"), Some(300));
        assert_eq!(read("-1"), Some(-1));
        assert_eq!(read("9e18"), Some(9_000_000_000_000_000_000));
        assert_eq!(read("9e30"), Some(i64::MAX));
        assert_eq!(read("-9e30"), Some(i64::MIN));
        assert_eq!(read("18446744073709551615"), Some(i64::MAX));
        for bad in ["1.5", "\"5\"", "true", "null", "[]", "{}", "1e999"] {
            assert_eq!(read(bad), None, "{bad}");
        }
    }

    #[test]
    fn array_is_no_object() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Pair<'a> {
            #[serde(borrow)]
            left: Text<'a>,
            right: Option<Int>,
        }
        #[derive(Debug, Deserialize)]
        struct Pairs<'a> {
            #[serde(borrow, deserialize_with = "objects")]
            pairs: Vec<Pair<'a>>,
        }
        let read = |text| serde_json::from_str::<Object<Pairs<'_>>>(text).map(|object| object.0.pairs);
        let pair = Pair {
            left: "a".into(),
            right: Some(Int(1)),
        };
        assert_eq!(read(r#"{"pairs":[{"left":"a","right":1}]}"#).unwrap(), [pair]);
        for bad in [
            r#"{"pairs":[["a",1]]}"#,
            r#"{"pairs":[null]}"#,
            r#"{"pairs":["a"]}"#,
            r#"{"pairs":{"left":"a"}}"#,
            r#"[[{"left":"a"}]]"#,
            r#"{"pairs":[{"left":"a","left":"b"}]}"#,
            r#"{"pairs":[],"pairs":[]}"#,
            r#"{"pairs":[]} {}"#,
            "null",
        ] {
            assert!(read(bad).is_err(), "{bad}");
        }
    }
}
