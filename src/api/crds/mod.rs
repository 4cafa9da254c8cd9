pub fn all()->Vec<k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition>{ use kube::CustomResourceExt; vec![super::BundleDeployment::crd(),super::Cluster::crd(),super::Bundle::crd()]}
#[cfg(test)] mod t { #[test] fn dump(){ std::fs::write("/tmp/ours.json", serde_json::to_string_pretty(&super::all()).unwrap()).unwrap(); } }
