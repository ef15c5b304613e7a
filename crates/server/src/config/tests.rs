//! Every setting in every layer.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;

use super::*;

fn flags(arguments: &[&str]) -> ServeArgs {
    let parser = ServeArgs::augment_args(clap::Command::new("serve").no_binary_name(true));
    ServeArgs::from_arg_matches(&parser.try_get_matches_from(arguments).unwrap()).unwrap()
}

fn resolve(arguments: &[&str], variables: &[(&str, &str)]) -> Result<Settings, String> {
    let variable =
        |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned());
    Settings::resolve(flags(arguments), variable)
}

fn file(text: &str) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(text.as_bytes()).unwrap();
    file
}

#[test]
fn flag_beats_variable_beats_file_beats_default() {
    let file = file("listen = \"127.0.0.1:5\"\nnode = \"file\"\nmax_body = \"2MiB\"\n");
    let path = file.path().to_str().unwrap();
    let port = |arguments: &[&str], variables: &[(&str, &str)]| {
        let settings = resolve(arguments, variables).unwrap();
        (settings.listen.port(), settings.node.unwrap_or_default(), settings.limits.body_bytes)
    };
    let (own, older) = (("ORCHESTRIX_LISTEN", "127.0.0.1:3"), ("PORT", "4"));
    let config = ("ORCHESTRIX_CONFIG", path);
    assert_eq!(port(&["--listen", "127.0.0.1:2"], &[own, older, config]), (2, "file".into(), 2 << 20));
    assert_eq!(port(&[], &[own, older, config]).0, 3);
    assert_eq!(port(&[], &[older, config, ("PROCESS_NAME", "older")]), (4, "older".into(), 2 << 20));
    assert_eq!(port(&["--config", path], &[]).0, 5);
    assert_eq!(port(&[], &[]), (3000, String::new(), 1 << 20));
}

/// Something that is not the default of a setting; nothing for the one that names a file of others.
fn some_value(name: &str) -> Option<&'static str> {
    Some(match name {
        "listen" | "zmq" => "127.0.0.1:9",
        "engine" => "memory",
        "bus" => "redis://h",
        "log_format" => "json",
        "insecure_plaintext" | "accept_data_loss" => "true",
        name if name.contains("max_")
            || ["retention_count", "keys_max", "snapshot_after"].contains(&name) =>
        {
            "5000001"
        }
        name if name.contains("timeout")
            || name.starts_with("retention")
            || name.starts_with("key_")
            || name.starts_with("leader")
            || name.starts_with("shard")
            || name.starts_with("cluster")
            || name == "bus_lease" =>
        {
            "7s"
        }
        "config" => return None,
        _ => "text",
    })
}

#[test]
fn every_setting_can_be_given_in_every_layer() {
    for name in ServeArgs::NAMES {
        let Some(text) = some_value(name) else { continue };
        let flag = flags(&[&format!("--{}", name.replace('_', "-")), text]);
        let variable = from_variables(&|asked: &str| {
            (asked == format!("ORCHESTRIX_{}", name.to_uppercase())).then(|| text.to_owned())
        });
        let quoted = if ["5000001", "true"].contains(&text) { text.to_owned() } else { format!("{text:?}") };
        let file = match name.strip_prefix("cluster_") {
            Some(key) => format!("[cluster]\n{key} = {quoted}"),
            None => format!("{name} = {quoted}"),
        };
        let file: ServeArgs = toml::from_str(&file).unwrap();
        assert_ne!(flag, ServeArgs::default(), "{name}");
        assert_eq!(variable.unwrap(), flag, "{name}");
        assert_eq!(file, flag, "{name}");
    }
}

#[test]
fn every_setting_has_an_effect() {
    let shown = |variables: &[(&str, &str)]| resolve(&[], variables).map(|settings| format!("{settings:?}"));
    let usual = shown(&[]).unwrap();
    for name in ServeArgs::NAMES {
        let Some(text) = some_value(name) else { continue };
        let variable = format!("ORCHESTRIX_{}", name.to_uppercase());
        match shown(&[(&variable, text)]) {
            Ok(changed) => assert_ne!(changed, usual, "{name} changes nothing"),
            // To be refused is an effect, if it is for its own sake.
            Err(why) => assert!(why.contains(name) || why.contains(text), "{name}: {why}"),
        }
    }
}

#[test]
fn retention_can_be_set() {
    let kept = |arguments: &[&str]| resolve(arguments, &[]).unwrap().retention;
    let usual = Retention::default();
    assert_eq!(kept(&[]), usual);
    assert_eq!(kept(&["--key-retention", "90s"]), Retention { key_ms: 90_000, ..usual });
    assert_eq!(kept(&["--keys-max", "7"]), Retention { keys: 7, ..usual });
    assert_eq!(kept(&["--retention", "90s"]), Retention { done_ms: 90_000, ..usual });
    assert_eq!(kept(&["--retention-failed", "90s"]), Retention { failed_ms: 90_000, ..usual });
    assert_eq!(kept(&["--retention-count", "7"]), Retention { count: 7, ..usual });
}

#[test]
fn a_mistake_is_reported_with_its_place() {
    let told = |arguments: &[&str], variables: &[(&str, &str)]| resolve(arguments, variables).unwrap_err();
    let unknown = file("listne = \"127.0.0.1:5\"");
    let told_of_file = told(&["--config", unknown.path().to_str().unwrap()], &[]);
    assert!(
        told_of_file.contains("unknown field `listne`") && told_of_file.contains("line 1"),
        "{told_of_file}"
    );
    assert!(told(&["--config", "/nowhere/x.toml"], &[]).contains("/nowhere/x.toml"));
    assert!(told(&[], &[("ORCHESTRIX_LISTEN", "here")]).contains("ORCHESTRIX_LISTEN"));
    assert!(told(&[], &[("ORCHESTRIX_RETENTION", "5")]).contains("30s"));
    assert!(told(&[], &[("PORT", "http")]).contains("PORT is \"http\""));
    assert!(told(&["--max-body", "1"], &[]).contains("max_body is 1"));
    assert!(told(&["--snapshot-after", "1"], &[]).contains("snapshot_after is 1"));
}

#[test]
fn leadership_is_checked_before_anything_is_opened() {
    let told = |arguments: &[&str]| resolve(arguments, &[]).unwrap_err();
    assert!(told(&["--leader-ttl", "50ms"]).contains("leader_ttl (50ms)"));
    assert!(told(&["--leader-ttl", "2s", "--leader-renew", "1001ms"]).contains("leader_renew (1.001s)"));
    let settings = resolve(&["--controller-ttl", "9s"], &[]).unwrap();
    assert_eq!(settings.leadership.leader_renew, std::time::Duration::from_secs(3));
    for wrong in [
        "10.0.0.5:3000",
        "https://h",
        "http://",
        "http://h/x",
        "http://u@h",
        "http://a b:1",
        "http://h:99999",
        "http://h:",
    ] {
        assert!(told(&["--advertise", wrong]).contains("http://10.0.0.5:3000"), "{wrong}");
    }
    assert_eq!(resolve(&["--advertise", "http://h:1/"], &[]).unwrap().advertise.unwrap(), "http://h:1");
}

#[test]
fn an_invalid_engine_address_hides_its_password() {
    let wrong = "radish://user:canary@host";
    let file = file(&format!("engine = \"{wrong}\""));
    let path = file.path().to_str().unwrap();
    for told in [
        resolve(&["--engine", wrong], &[]).unwrap_err(),
        resolve(&[], &[("ORCHESTRIX_ENGINE", wrong)]).unwrap_err(),
        resolve(&["--config", path], &[]).unwrap_err(),
    ] {
        assert!(told.contains("redis://") && !told.contains("canary"), "{told}");
    }
    assert!(!format!("{:?}", flags(&["--engine", wrong])).contains("canary"));
}

#[test]
fn production_logs_in_json_by_default() {
    let format = |arguments: &[&str]| resolve(arguments, &[("NODE_ENV", "production")]).unwrap().log_format;
    assert_eq!(format(&[]), LogFormat::Json);
    assert_eq!(format(&["--log-format", "text"]), LogFormat::Text);
}

#[test]
fn variables_of_other_shard_coordinators_are_accepted() {
    let usual = resolve(&[], &[]).unwrap();
    assert_eq!((usual.zmq, usual.shards.lease_ms, usual.shards.check_ms), (None, 15_000, 5_000));
    let set = resolve(
        &[],
        &[
            ("SHARD_COORDINATOR_BIND_HOST", "tcp://127.0.0.1"),
            ("SHARD_COORDINATOR_BIND_PORT", "6000"),
            ("HEARTBEAT_TIMEOUT_SECONDS", "20"),
            ("HEARTBEAT_CHECK_INTERVAL_SECONDS", "7"),
        ],
    )
    .unwrap();
    let address = "127.0.0.1:6000".parse().unwrap();
    assert_eq!(
        (set.zmq, set.shards.lease_ms, set.shards.check_ms),
        (Some(Place::At(address)), 20_000, 7_000)
    );
    let port = resolve(&[], &[("SHARD_COORDINATOR_BIND_PORT", "6000")]).unwrap();
    assert_eq!(port.zmq, Some(Place::At(address)));
    assert_eq!(
        resolve(&["--zmq", "off"], &[("SHARD_COORDINATOR_BIND_PORT", "6")]).unwrap().zmq,
        Some(Place::Off)
    );
    for (name, text) in [
        ("SHARD_COORDINATOR_BIND_HOST", "tcp://worker"),
        ("SHARD_COORDINATOR_BIND_PORT", "65536"),
        ("HEARTBEAT_TIMEOUT_SECONDS", "15s"),
        ("HEARTBEAT_CHECK_INTERVAL_SECONDS", "-1"),
    ] {
        let why = resolve(&[], &[(name, text)]).unwrap_err();
        assert!(why.contains(name) && why.contains(text), "{why}");
    }
}

#[test]
fn on_a_shared_engine_shards_outlive_a_change_of_leader() {
    let shared = |more: &[&str]| {
        let usual = ["--engine", "redis://127.0.0.1", "--leader-ttl", "10s", "--leader-renew", "3s"];
        resolve(&[&usual, more].concat(), &[]).map(|set| set.shards.lease_ms)
    };
    assert_eq!(shared(&[]), Ok(18_000), "what is needed, because it is more than the usual");
    assert_eq!(shared(&["--shard-lease", "18s"]), Ok(18_000));
    let why = shared(&["--shard-lease", "17999ms"]).unwrap_err();
    assert!(why.contains("shard_lease is 17999 ms") && why.contains("18000 ms"), "{why}");
    let alone = |lease: &str| resolve(&["--shard-lease", lease], &[]).map(|set| set.shards.check_ms);
    assert_eq!(alone("100ms"), Ok(100));
    assert!(alone("99ms").unwrap_err().contains("at least 100 ms"));
    let check = |check: &str| resolve(&["--shard-lease", "3s", "--shard-check", check], &[]);
    assert_eq!(check("3s").unwrap().shards.check_ms, 3_000);
    assert!(check("3001ms").unwrap_err().contains("longer than shard_lease"));
}

fn private(text: &str) -> tempfile::NamedTempFile {
    // Such files are made for their owner only.
    file(text)
}

fn readable(text: &str) -> tempfile::NamedTempFile {
    let file = file(text);
    std::fs::set_permissions(file.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    file
}

#[test]
fn an_engine_can_be_in_a_file_of_its_own() {
    let engine = private("  redis://u:canary@h\n");
    let path = engine.path().to_str().unwrap();
    let shared = |set: Result<Settings, String>| matches!(set.unwrap().engine, Engine::Shared(_));
    assert!(shared(resolve(&["--engine-file", path], &[])));
    assert!(shared(resolve(&[], &[("ORCHESTRIX_ENGINE_FILE", path)])));
    let settings = file(&format!("engine_file = {path:?}"));
    let config = settings.path().to_str().unwrap();
    assert!(shared(resolve(&["--config", config], &[])));
    // A layer above counts, whichever of the two it has.
    let alone = |set: Result<Settings, String>| set.unwrap().engine == Engine::Memory;
    assert!(alone(resolve(&["--config", config, "--engine", "memory"], &[])));
    assert!(alone(resolve(&["--engine", "memory"], &[("ORCHESTRIX_ENGINE_FILE", path)])));
    assert!(shared(resolve(&["--engine-file", path], &[("ORCHESTRIX_ENGINE", "memory")])));
    let both = resolve(&["--engine-file", path, "--engine", "memory"], &[]).unwrap_err();
    assert!(both.contains("engine_file"), "{both}");
    let empty = private("\n");
    let why = resolve(&["--engine-file", empty.path().to_str().unwrap()], &[]).unwrap_err();
    assert!(why.contains("redis://") && why.contains(empty.path().to_str().unwrap()), "{why}");
    assert!(resolve(&["--engine-file", "/nowhere"], &[]).unwrap_err().contains("/nowhere"));
}

#[test]
fn files_with_an_engine_password_are_private() {
    let address = "redis://u:canary@h";
    let (engine, settings) = (readable(address), readable(&format!("engine = {address:?}")));
    for (flag, file) in [("--engine-file", &engine), ("--config", &settings)] {
        let path = file.path().to_str().unwrap();
        let why = resolve(&[flag, path], &[]).unwrap_err();
        assert!(why.contains("chmod 600") && why.contains(path) && !why.contains("canary"), "{why}");
    }
    for text in ["redis://h", "memory"] {
        let (engine, settings) = (readable(text), readable(&format!("engine = {text:?}")));
        for (flag, file) in [("--engine-file", &engine), ("--config", &settings)] {
            assert!(resolve(&[flag, file.path().to_str().unwrap()], &[]).is_ok(), "{flag} {text}");
        }
    }
}

#[test]
fn a_password_in_the_arguments_is_warned_of() {
    let warned = |arguments: &[&str], variables: &[(&str, &str)]| {
        let settings = resolve(arguments, variables).unwrap();
        settings.warnings.iter().any(|warning| warning.contains("--engine-file"))
    };
    assert!(warned(&["--engine", "redis://u:canary@h"], &[]));
    assert!(!warned(&["--engine", "redis://h"], &[]));
    assert!(!warned(&[], &[("ORCHESTRIX_ENGINE", "redis://u:canary@h")]));
}

#[test]
fn a_mistake_in_the_file_does_not_show_its_password() {
    for wrong in [
        "engine = \"redis://u:canary@h\"\nlistne = 1",
        "engine = [\"redis://u:canary@h\"]",
        "engine = \"redis://u:canary@h",
        "engine = redis://u:canary@h",
        "listen = \"redis://u:canary@h\"",
        "max_streams = \"redis://u:canary@h\"",
        "retention = \"redis://u:canary@h\"",
        "zmq = \"redis://u:canary@h\"",
        "node = \"redis://u:canary@h\"",
        "log_format = \"redis://u:canary@h\"",
    ] {
        let file = file(wrong);
        let why = resolve(&["--config", file.path().to_str().unwrap()], &[]).unwrap_err();
        assert!(why.contains("line ") && !why.contains("canary"), "{wrong}: {why}");
    }
}

#[test]
fn the_engine_carries_the_bus_if_it_can() {
    let bus = |arguments: &[&str]| resolve(arguments, &[]).map(|set| set.bus);
    for (engine, at) in [
        ("file", BusAt::Off),
        ("memory", BusAt::Off),
        ("redis://h", BusAt::Engine),
        ("rediss://h", BusAt::Engine),
        ("mysql://u@h/d", BusAt::Off),
        ("postgres://u@h/d", BusAt::Off),
        ("s3://bucket", BusAt::Off),
    ] {
        assert_eq!(bus(&["--engine", engine]), Ok(at), "{engine}");
        assert_eq!(bus(&["--engine", engine, "--bus", "off"]), Ok(BusAt::Off), "{engine}");
        let own = bus(&["--engine", engine, "--bus", "redis://b"]);
        assert!(matches!(own, Ok(BusAt::Server(_))), "{engine}: {own:?}");
    }
    for wrong in ["", "on", "memory", "mysql://u:canary@h/d", "redis", "radish://u:canary@h"] {
        let why = bus(&["--bus", wrong]).unwrap_err();
        assert!(why.contains("off") && why.contains("redis://") && !why.contains("canary"), "{wrong}: {why}");
    }
}

#[test]
fn a_password_of_the_bus_is_kept_from_others() {
    let address = "redis://u:canary@h";
    let (own, others) = (private(&format!("{address}\n")), readable(address));
    let at = |set: Result<Settings, String>| matches!(set.unwrap().bus, BusAt::Server(_));
    assert!(at(resolve(&["--bus-file", own.path().to_str().unwrap()], &[])));
    let shown = readable(&format!("bus = {address:?}"));
    for (flag, file) in [("--bus-file", &others), ("--config", &shown)] {
        let path = file.path().to_str().unwrap();
        let why = resolve(&[flag, path], &[]).unwrap_err();
        assert!(why.contains("chmod 600") && why.contains(path) && !why.contains("canary"), "{why}");
    }
    let both = resolve(&["--bus", "off", "--bus-file", own.path().to_str().unwrap()], &[]).unwrap_err();
    assert!(both.contains("both bus and bus_file"), "{both}");
    // A layer above counts, whichever of the two it has.
    let file = file(&format!("bus_file = {:?}", own.path()));
    let config = file.path().to_str().unwrap();
    assert_eq!(resolve(&["--config", config, "--bus", "off"], &[]).unwrap().bus, BusAt::Off);
    let warned = |arguments: &[&str], variables: &[(&str, &str)]| {
        let settings = resolve(arguments, variables).unwrap();
        settings.warnings.iter().filter(|warning| warning.contains("--bus-file")).count()
    };
    assert_eq!(warned(&["--bus", address], &[]), 1);
    assert_eq!(warned(&["--bus", "redis://h"], &[("ORCHESTRIX_BUS", address)]), 0);
    assert_eq!(warned(&["--engine", address], &[]), 0);
}

#[test]
fn the_table_of_the_cluster_is_a_layer_as_others() {
    let file = file(
        "engine = \"memory\"\n[cluster]\nheartbeat_interval = \"3s\"\nhandoff_max_retries = 4\n\
         dead_node_timeout = \"7s\"\n",
    );
    let config = file.path().to_str().unwrap();
    let set = |arguments: &[&str], variables: &[(&str, &str)]| {
        let options = resolve(&[&["--config", config], arguments].concat(), variables).unwrap().bus_options;
        (options.heartbeat_interval.as_millis(), options.handoff_max_retries)
    };
    assert_eq!(set(&[], &[]), (3_000, 4));
    assert_eq!(set(&[], &[("ORCHESTRIX_CLUSTER_HEARTBEAT_INTERVAL", "2s")]), (2_000, 4));
    assert_eq!(
        set(&["--cluster-heartbeat-interval", "1s"], &[("ORCHESTRIX_CLUSTER_HEARTBEAT_INTERVAL", "2s")]).0,
        1_000
    );
    for (wrong, told) in [
        ("[cluster]\nheartbeat_intervall = \"3s\"", "unknown field `heartbeat_intervall`"),
        ("cluster_heartbeat_interval = \"3s\"", "unknown field `cluster_heartbeat_interval`"),
        ("[cluster]\nengine = \"memory\"", "unknown field `engine`"),
        ("[cluster]\nhandoff_max_retries = -1", "handoff_max_retries"),
        ("cluster = 1", "line 1"),
    ] {
        let file = super::tests::file(wrong);
        let why = resolve(&["--config", file.path().to_str().unwrap()], &[]).unwrap_err();
        assert!(
            why.contains("line ") && (why.contains(told) || told == "handoff_max_retries"),
            "{wrong}: {why}"
        );
    }
}
