// SPDX-License-Identifier: Apache-2.0
//! Who owns which field of a live object, reduced to two numbers: they tell whether anybody took a field of ours, and
//! whether anybody but us touched the object, without keeping what `managedFields` says.

use std::io;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use serde_json::Value;

use crate::api::keys;

/// Owners of an object's fields, digested. Comparable between processes and versions of this program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// The set of fields that are ours by apply; `None` without such an entry, or when some are ours otherwise. A foreign change or removal of a field
    /// of ours makes the set smaller: the API server takes it from us.
    pub managed: Option<u64>,
    /// What others own, and when they took it last; the status apart. Zero when nobody else ever wrote.
    pub others: u64,
}

/// One entry of `managedFields`.
pub(super) struct Entry<'a> {
    pub manager: &'a str,
    pub operation: &'a str,
    pub subresource: &'a str,
    /// Unix time.
    pub seconds: Option<i64>,
    pub fields: &'a Value,
}

impl<'a> Entry<'a> {
    pub fn json(entry: &'a Value) -> Self {
        let text = |key: &str| entry[key].as_str().unwrap_or_default();
        let time = entry["time"].as_str().and_then(|text| chrono::DateTime::parse_from_rfc3339(text).ok());
        Self {
            manager: text("manager"),
            operation: text("operation"),
            subresource: text("subresource"),
            seconds: time.map(|time| time.timestamp()),
            fields: &entry["fieldsV1"],
        }
    }

    pub fn typed(entry: &'a ManagedFieldsEntry) -> Self {
        Self {
            manager: entry.manager.as_deref().unwrap_or_default(),
            operation: entry.operation.as_deref().unwrap_or_default(),
            subresource: entry.subresource.as_deref().unwrap_or_default(),
            seconds: entry.time.as_ref().map(|time| time.0.as_second()),
            fields: entry.fields_v1.as_ref().map_or(&Value::Null, |fields| &fields.0),
        }
    }

    fn is_ours(&self) -> bool {
        self.manager == keys::FIELD_MANAGER && self.operation == "Apply" && self.subresource.is_empty()
    }
}

impl Owners {
    /// Of an object at `version` with these labels and annotations. Objects that count generations need no version, and
    /// their status may change often: their generation tells of what changed beside it, but for labels and annotations,
    /// which raise none. The owners' times do not tell of these either: they are whole seconds.
    pub(super) fn of<'a>(
        entries: impl Iterator<Item = Entry<'a>>,
        marks: impl Iterator<Item = (&'a str, &'a str)>,
        generation: Option<i64>,
        version: &str,
    ) -> Self {
        let mut owners = Self::default();
        let mut others = Digest::default();
        let (mut alone, mut mixed) = (true, false);
        for entry in entries {
            if entry.is_ours() {
                let mut own = Digest::default();
                own.json(entry.fields);
                owners.managed = Some(own.0);
            } else if entry.subresource != "status" {
                alone = false;
                mixed |= entry.manager == keys::FIELD_MANAGER && entry.subresource.is_empty();
                for text in [entry.manager, entry.operation, entry.subresource] {
                    others.text(text);
                }
                others.text(&entry.seconds.unwrap_or_default().to_string());
                others.json(entry.fields);
            }
        }
        if mixed {
            // Part of what is ours was written otherwise: the one set does not tell what all of it is.
            owners.managed = None;
        }
        if !alone {
            match generation {
                Some(generation) => {
                    others.text(&generation.to_string());
                    // A new stamp is our own doing.
                    for (key, value) in marks.filter(|(key, _)| *key != keys::EPOCH_ANNOTATION) {
                        others.text(key);
                        others.text(value);
                    }
                }
                None => others.text(version),
            }
            owners.others = others.0;
        }
        owners
    }
}

/// FNV-1a, 64 bits: stable, small, and no secret depends on it.
#[derive(Clone, Copy, Debug)]
pub struct Digest(pub u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds a text and its end.
    pub fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
        self.bytes(&[0]);
    }

    fn json(&mut self, value: &Value) {
        // Writing into a digest cannot fail, and a value read as JSON can be written as JSON.
        let _ = serde_json::to_writer(&mut *self, value);
    }

    fn bytes(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

impl io::Write for Digest {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn owners(entries: &Value, generation: Option<i64>, version: &str) -> Owners {
        marked(&[], entries, generation, version)
    }

    fn marked(marks: &[(&str, &str)], entries: &Value, generation: Option<i64>, version: &str) -> Owners {
        let entries = entries.as_array().unwrap().iter().map(Entry::json);
        Owners::of(entries, marks.iter().copied(), generation, version)
    }

    fn ours(fields: Value) -> Value {
        json!({"manager": keys::FIELD_MANAGER, "operation": "Apply", "time": "2026-01-01T00:00:00Z", "fieldsV1": fields})
    }

    #[test]
    fn a_status_written_often_is_no_touch_and_a_foreign_edit_is_one() {
        let status = json!({"manager": "kcm", "operation": "Update", "subresource": "status", "fieldsV1": {"f:a": {}}});
        let person =
            |time: &str| json!({"manager": "kubectl", "operation": "Update", "time": time, "fieldsV1": {}});
        let alone = owners(&json!([ours(json!({"f:a": {}}))]), Some(1), "5");
        assert_eq!(owners(&json!([ours(json!({"f:a": {}})), status]), Some(2), "6"), alone);
        assert_eq!(alone.others, 0);
        let edit = |time, generation, version| {
            owners(&json!([ours(json!({"f:a": {}})), person(time)]), generation, version)
        };
        let edited = edit("2026-01-01T00:00:01Z", Some(2), "6");
        assert_eq!((edited.managed, edited.others != 0), (alone.managed, true));
        assert_eq!(edit("2026-01-01T00:00:01Z", Some(2), "7"), edited, "its status changed");
        assert_ne!(edit("2026-01-01T00:00:01Z", Some(3), "7"), edited);
        assert_ne!(edit("2026-01-01T00:00:02Z", Some(2), "7"), edited);
        assert_ne!(edit("2026-01-01T00:00:01Z", None, "6"), edit("2026-01-01T00:00:01Z", None, "7"));
    }

    /// Found by a label that was put back within the second in which it was changed.
    #[test]
    fn two_changes_of_a_label_in_one_second_are_told_apart_where_generations_are_counted() {
        let person = json!({"manager": "kubectl", "operation": "Update", "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": {"f:tier": {}}}}});
        let of = |marks: &[(&str, &str)]| marked(marks, &json!([ours(json!({})), person]), Some(1), "5");
        assert_ne!(of(&[("tier", "foreign")]), of(&[("tier", "wanted")]));
        let stamped = |stamp| of(&[("tier", "wanted"), (keys::EPOCH_ANNOTATION, stamp)]);
        assert_eq!(stamped("u/1"), stamped("u/2"));
    }

    #[test]
    fn the_digest_is_the_same_in_every_process() {
        let mut digest = Digest::default();
        digest.text("a");
        assert_eq!(digest.0, 0x089b_e207_b544_f1e4);
    }
}
