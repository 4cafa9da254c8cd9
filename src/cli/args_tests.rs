// SPDX-License-Identifier: Apache-2.0

use clap::CommandFactory;

use super::*;

#[derive(Debug, Parser)]
enum Roles {
    Agent(AgentVerb),
    Controller(ControllerVerb),
}

fn agent(flags: &[&str], env: &[(&str, &str)]) -> Result<AgentArgs, ArgsError> {
    let words = ["flotilla", "agent"].iter().chain(flags);
    let Roles::Agent(verb) = Roles::try_parse_from(words).unwrap() else { panic!("not the agent") };
    let env: std::collections::HashMap<_, _> = env.iter().copied().collect();
    verb.resolve(&|name| env.get(name).map(|value| (*value).to_owned()))
}

fn controller(flags: &[&str]) -> ControllerArgs {
    let words = ["flotilla", "controller"].iter().chain(flags);
    let Roles::Controller(verb) = Roles::try_parse_from(words).unwrap() else { panic!("not the controller") };
    verb.resolve(&|_| None)
}

fn log(flags: &[&str]) -> (LogFormat, String) {
    let words = ["flotilla", "controller"].iter().chain(flags);
    let Roles::Controller(verb) = Roles::try_parse_from(words).unwrap() else { panic!("not the controller") };
    (verb.log.format(), verb.log.filter().to_owned())
}

#[test]
fn the_command_line_is_well_formed() {
    Cli::command().debug_assert();
    Roles::command().debug_assert();
}

#[test]
fn an_agent_without_a_namespace_fails_with_fleets_words() {
    for env in [&[][..], &[("NAMESPACE", "")]] {
        let error = agent(&[], env).unwrap_err();
        assert_eq!(error.to_string(), "--namespace or env NAMESPACE is required to be set");
    }
    assert_eq!(agent(&["--namespace", ""], &[]), Err(ArgsError::NoNamespace));
}

#[test]
fn defaults_are_fleets_and_the_designs() {
    let args = agent(&["--namespace", "ns"], &[]).unwrap();
    let secs = Duration::from_secs;
    assert_eq!(
        args,
        AgentArgs {
            namespace: "ns".into(),
            scope: String::new(),
            checkin_interval: secs(900),
            kubeconfig: None,
            workers: 50,
            metrics_address: ":8080".into(),
            probe_address: ":8081".into(),
            claim_timeout: secs(600),
            claim_margin: secs(30),
            session_ttl: secs(15),
            session_renew: secs(5),
            steal_delay: Duration::from_millis(250),
            absence_grace: secs(300),
            mass_absence_grace: secs(3600),
            shutdown_grace: secs(25),
            pod_name: None,
            pod_uid: None,
            remarks: vec![],
        }
    );
}

#[test]
fn flags_win_over_the_environment() {
    let env =
        [("NAMESPACE", "env"), ("AGENT_SCOPE", "env"), ("CHECKIN_INTERVAL", "1m"), ("KUBECONFIG", "/env")];
    let args = agent(&[], &env).unwrap();
    assert_eq!((args.namespace.as_str(), args.scope.as_str()), ("env", "env"));
    assert_eq!(args.checkin_interval, Duration::from_secs(60));
    assert_eq!(args.kubeconfig, Some("/env".into()));
    let flags = ["--namespace=flag", "--agent-scope=flag", "--checkin-interval=1h30m", "--kubeconfig=/flag"];
    let args = agent(&flags, &env).unwrap();
    assert_eq!((args.namespace.as_str(), args.scope.as_str()), ("flag", "flag"));
    assert_eq!(args.checkin_interval, Duration::from_secs(5400));
    assert_eq!(args.kubeconfig, Some("/flag".into()));
}

#[test]
fn a_checkin_interval_of_zero_is_the_default_and_a_strange_one_is_named() {
    let with = |text| agent(&["--namespace=ns"], &[("CHECKIN_INTERVAL", text)]);
    for text in ["", "0", "0s"] {
        assert_eq!(with(text).unwrap().checkin_interval, Duration::from_secs(900), "{text:?}");
    }
    assert_eq!(with("soon").unwrap_err().to_string(), "env CHECKIN_INTERVAL");
    assert!(Roles::try_parse_from(["flotilla", "agent", "--checkin-interval=soon"]).is_err());
}

#[test]
fn worker_slots_come_from_fleets_variable() {
    let with = |text| agent(&["--namespace=ns"], &[("BUNDLEDEPLOYMENT_RECONCILER_WORKERS", text)]).unwrap();
    assert_eq!((with("7").workers, with("7").remarks), (7, vec![]));
    assert_eq!(with("").workers, 50);
    for text in ["many", "0", "-1", "1.5"] {
        let args = with(text);
        assert_eq!(args.workers, 50, "{text}");
        assert!(args.remarks[0].contains(&format!("{text:?}")), "{:?}", args.remarks);
    }
}

#[test]
fn what_fleets_chart_passes_is_accepted_and_reported() {
    let args = agent(
        &[
            "--debug",
            "--debug-level",
            "5",
            "--leader-elect=false",
            "--zap-devel",
            "--zap-log-level=info",
            "--zap-encoder=json",
            "--zap-stacktrace-level=error",
            "--zap-time-encoding=iso8601",
        ],
        &[
            ("NAMESPACE", "ns"),
            ("CATTLE_ELECTION_LEASE_DURATION", "30s"),
            ("CATTLE_ELECTION_RENEW_DEADLINE", "25s"),
            ("CATTLE_ELECTION_RETRY_PERIOD", "10s"),
            ("DRIFT_RECONCILER_WORKERS", "50"),
            ("CHECKIN_INTERVAL", "10m"),
        ],
    )
    .unwrap();
    assert_eq!(args.checkin_interval, Duration::from_secs(600));
    for word in
        ["--leader-elect", "LEASE_DURATION", "RENEW_DEADLINE", "RETRY_PERIOD", "DRIFT", "--debug-level"]
    {
        assert_eq!(args.remarks.iter().filter(|remark| remark.contains(word)).count(), 1, "{word}");
    }
}

#[test]
fn addresses_are_read_in_gos_form() {
    for (text, expected) in [
        ("0", "0"),
        ("", "0"),
        (":9090", ":9090"),
        ("127.0.0.1:1", "127.0.0.1:1"),
        ("[::1]:1", "[::1]:1"),
        ("localhost:6", "127.0.0.1:6"),
    ] {
        assert_eq!(text.parse(), Ok(BindAddress(expected.into())), "{text:?}");
    }
    for text in ["8080", ":", ":http", "example.com:80", ":70000"] {
        assert!(text.parse::<BindAddress>().is_err(), "{text:?}");
    }
    let off = [("FLEET_AGENT_METRICS_BIND_ADDRESS", "0"), ("FLEET_AGENT_PROBE_BIND_ADDRESS", ":1")];
    let args = agent(&["--namespace=ns"], &off).unwrap();
    assert_eq!((args.metrics_address, args.probe_address), ("0".into(), ":1".into()));
    let strange = [("FLEET_AGENT_PROBE_BIND_ADDRESS", "x")];
    assert!(matches!(agent(&["--namespace=ns"], &strange), Err(ArgsError::Address { .. })));
}

#[test]
fn a_session_must_be_renewed_twice_within_its_life() {
    let with = |renew, ttl| agent(&["--namespace=ns", "--session-renew", renew, "--session-ttl", ttl], &[]);
    assert!(with("5s", "10s").is_ok());
    for (renew, ttl) in [("5s", "9s"), ("0", "10s"), ("1s", "0")] {
        assert_eq!(with(renew, ttl), Err(ArgsError::Renewal), "{renew} {ttl}");
    }
}

#[test]
fn the_log_follows_the_most_particular_flag() {
    assert_eq!(log(&[]), (LogFormat::Json, "info".into()));
    assert_eq!(log(&["--debug"]), (LogFormat::Json, "debug".into()));
    assert_eq!(log(&["--debug=false"]).1, "info");
    assert_eq!(log(&["--zap-encoder=console", "--zap-log-level=2"]), (LogFormat::Text, "debug".into()));
    assert_eq!(log(&["--zap-log-level=error"]).1, "error");
    assert_eq!(
        log(&["--zap-encoder=console", "--log-format=json", "--debug", "--log-level=warn,kube=info"]),
        (LogFormat::Json, "warn,kube=info".into())
    );
}

#[test]
fn the_controller_has_its_own_defaults() {
    let args = controller(&[]);
    assert_eq!(args.claim_timeout, Duration::from_secs(600));
    assert_eq!(args.claim_margin, Duration::from_secs(30));
    assert_eq!(args.namespace, None);
    assert_eq!(args.metrics_address, ":8080");
    let args = controller(&["--metrics-bind-address=0", "--namespace=c1", "--claim-margin=1m"]);
    assert_eq!((args.metrics_address.as_str(), args.namespace.as_deref()), ("0", Some("c1")));
    assert_eq!(args.claim_margin, Duration::from_secs(60));
}
