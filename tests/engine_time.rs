// SPDX-License-Identifier: Apache-2.0
//! What a render costs: `cargo test --release --test engine_time -- --ignored --nocapture`.

#![cfg(target_os = "linux")]

use std::{fs, sync::Arc, time::Instant};

use flotilla::render::engine::{Capabilities, Engine, EngineConfig, Lookup, ReleaseFacts, RenderRequest};
use futures::future::BoxFuture;
use serde_json::{Map, Value};

const ROUNDS: u32 = 1000;

const HELPERS: &str = r#"{{ define "name" }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 63 | trimSuffix "-" }}{{ end }}
{{- define "labels" }}
app.kubernetes.io/name: {{ include "name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}"#;

const VALUES: &str = "replicas: 2
image: {name: shop, tag: ''}
resources: {limits: {cpu: 1, memory: 1Gi}}
env: {A: '{{ .Release.Name }}', B: b, C: c}
";

const DEPLOYMENT: &str = r#"apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ include "name" . }}-NUMBER
  labels: {{- include "labels" . | nindent 4 }}
spec:
  replicas: {{ .Values.replicas }}
  selector:
    matchLabels: {{- include "labels" . | nindent 6 }}
  template:
    metadata:
      labels: {{- include "labels" . | nindent 8 }}
    spec:
      containers:
      - name: main
        image: "{{ .Values.image.name }}:{{ .Values.image.tag | default .Chart.Version }}"
        resources: {{- toYaml .Values.resources | nindent 10 }}
        env:
        {{- range $k, $v := .Values.env }}
        - {name: {{ $k }}, value: {{ tpl $v $ | quote }}}
        {{- end }}
"#;

struct Nothing;

impl Lookup for Nothing {
    fn lookup<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        _: &'a str,
        _: &'a str,
    ) -> BoxFuture<'a, Result<Option<Value>, String>> {
        Box::pin(async { Ok(None) })
    }
}

fn ten_templates() -> RenderRequest {
    let mut files = vec![
        ("Chart.yaml".to_owned(), b"{apiVersion: v2, name: shop, version: 1.0.0}".to_vec()),
        ("values.yaml".to_owned(), VALUES.into()),
        ("templates/_helpers.tpl".to_owned(), HELPERS.into()),
    ];
    let templates =
        (0..10).map(|i| (format!("templates/d{i}.yaml"), DEPLOYMENT.replace("NUMBER", &i.to_string())));
    files.extend(templates.map(|(name, text)| (name, text.into_bytes())));
    RenderRequest {
        files,
        values: Map::new(),
        release: ReleaseFacts {
            name: "rel".into(),
            namespace: "space".into(),
            revision: 1,
            is_upgrade: false,
        },
        capabilities: Arc::new(Capabilities {
            kube_version: "v1.36.3".into(),
            api_versions: vec!["v1".into()],
        }),
        dns: false,
        skip_schema: false,
        lookup: Arc::new(Nothing),
    }
}

/// Most memory that a process has held, as the kernel words it.
fn peak(pid: u32) -> String {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a line for it");
    line.trim().to_owned()
}

/// Processor time of a process so far, in ticks of ten milliseconds.
fn ticks(pid: u32) -> u32 {
    let text = fs::read_to_string(format!("/proc/{pid}/stat")).expect("the process runs");
    let (_, fields) = text.rsplit_once(") ").expect("its name is in parentheses");
    fields.split(' ').skip(11).take(2).map(|field| field.parse::<u32>().expect("a number")).sum()
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement"]
async fn time_of_a_chart_of_ten_templates() {
    let engine = Engine::start(EngineConfig::default()).expect("cargo has built the engine");
    for _ in 0..50 {
        engine.render(ten_templates()).await.expect("it renders");
    }
    let pid = engine.pid().expect("it runs");
    let (before, mut times) = (ticks(pid), Vec::new());
    for _ in 0..ROUNDS {
        let request = ten_templates();
        let start = Instant::now();
        let rendered = engine.render(request).await.expect("it renders");
        times.push(start.elapsed());
        assert_eq!(rendered.documents.len(), 10);
    }
    times.sort();
    println!(
        "there and back: median {:?}, 95th percentile {:?}; engine: {} µs of processor time a render, \
         {} at most",
        times[times.len() / 2],
        times[times.len() * 95 / 100],
        (ticks(pid) - before) * 10_000 / ROUNDS,
        peak(pid),
    );
}
