// SPDX-License-Identifier: Apache-2.0
//! Builds `flotilla-engine`, the Go program behind `src/render/engine.rs`, beside the binary.

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::{Command, exit},
};

const SOURCES: &str = "src/render/engine";

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let files = fs::read_dir(SOURCES).expect("the crate contains the engine's sources").flatten();
    let names = files.map(|entry| entry.file_name().to_string_lossy().into_owned());
    for name in
        names.filter(|name| name.starts_with("go.") || (name.ends_with(".go") && !name.ends_with("_test.go")))
    {
        println!("cargo::rerun-if-changed={SOURCES}/{name}");
    }
    let target = profile_directory().join(if variable("CARGO_CFG_TARGET_OS") == "windows" {
        "flotilla-engine.exe"
    } else {
        "flotilla-engine"
    });
    let mut go = Command::new("go");
    go.current_dir(SOURCES)
        .args(["build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o"])
        .arg(&target)
        .arg(".")
        // Static, so that it runs in an image without a libc; and what go.sum says, whatever the user's settings.
        .env("CGO_ENABLED", "0")
        .env("GOFLAGS", "-mod=readonly")
        .env("GOWORK", "off")
        .env("GOOS", variable("CARGO_CFG_TARGET_OS").replace("macos", "darwin"))
        .env("GOARCH", go_architecture(&variable("CARGO_CFG_TARGET_ARCH")));
    match go.status() {
        Ok(status) if status.success() => {}
        Ok(status) => fail(&format!("`go build` in {SOURCES} ended with {status}; its messages are above")),
        Err(error) => fail(&format!(
            "cannot run `go` ({error}). Flotilla reads manifests with Kubernetes' own YAML library, which is built \
             from {SOURCES}: install Go (the version in {SOURCES}/go.mod or newer) and put it on PATH"
        )),
    }
}

/// `target/<profile>`: OUT_DIR is `target/<profile>/build/<package>-<hash>/out`, with or without `--target`.
fn profile_directory() -> PathBuf {
    let out = PathBuf::from(variable("OUT_DIR"));
    out.ancestors().nth(3).map(Path::to_owned).expect("OUT_DIR lies in target/<profile>/build/<package>/out")
}

fn variable(name: &str) -> String {
    env::var(name).expect("cargo sets it for build scripts")
}

fn go_architecture(rust: &str) -> String {
    match rust {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
    .to_owned()
}

fn fail(message: &str) -> ! {
    eprintln!("error: {message}");
    exit(1)
}
