// SPDX-License-Identifier: Apache-2.0
//! Specs that may be absent.
//!
//! Fleet's CRDs do not require `spec`, kube's derive does. An object without one would not decode, and one object that
//! does not decode stops a whole watch.

/// Implements `Serialize` and `Deserialize` for a spec derived with `#[serde(remote = "…")]` naming itself: absent or
/// null is the default. serde asks for an option where a field is missing, so answering as one is enough.
macro_rules! optional_spec {
    ($spec:ident) => {
        impl serde::Serialize for $spec {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                // The inherent function that `remote` generates.
                Self::serialize(self, serializer)
            }
        }

        impl<'de> serde::Deserialize<'de> for $spec {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Present;

                impl<'de> serde::de::Visitor<'de> for Present {
                    type Value = $spec;

                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str(concat!("a ", stringify!($spec), " or nothing"))
                    }

                    fn visit_none<E>(self) -> Result<$spec, E> {
                        Ok($spec::default())
                    }

                    fn visit_unit<E>(self) -> Result<$spec, E> {
                        Ok($spec::default())
                    }

                    fn visit_some<D: serde::Deserializer<'de>>(
                        self,
                        deserializer: D,
                    ) -> Result<$spec, D::Error> {
                        $spec::deserialize(deserializer)
                    }
                }

                deserializer.deserialize_option(Present)
            }
        }
    };
}

pub(super) use optional_spec;

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::json;

    use crate::api::{Bundle, BundleDeployment, Cluster};

    #[test]
    fn objects_without_a_spec_are_read() {
        fn reads<T: DeserializeOwned + Default + PartialEq + std::fmt::Debug>() {
            for object in [json!({"metadata": {}}), json!({"metadata": {}, "spec": null})] {
                assert_eq!(serde_json::from_value::<T>(object.clone()).unwrap(), T::default());
                assert_eq!(serde_json::from_str::<T>(&object.to_string()).unwrap(), T::default());
            }
        }
        reads::<Bundle>();
        reads::<BundleDeployment>();
        reads::<Cluster>();
    }

    #[test]
    fn a_spec_of_another_form_is_still_an_error() {
        let object = json!({"metadata": {}, "spec": {"paused": "perhaps"}});
        assert!(serde_json::from_value::<BundleDeployment>(object).is_err());
    }
}
