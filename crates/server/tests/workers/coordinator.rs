//! A coordinator that speaks ZeroMQ and believes nobody for long, and what it says of a service.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::support::Coordinator;

/// Milliseconds that a worker is believed.
pub(crate) const LEASE_MS: u64 = 4_000;

pub(crate) struct ShardCoordinator {
    coordinator: Coordinator,
    options: Vec<String>,
    zmq: u16,
}

impl ShardCoordinator {
    pub(crate) fn start() -> Self {
        Self::with_lease(LEASE_MS)
    }

    pub(crate) fn with_lease(lease_ms: u64) -> Self {
        let zmq = orchestrix_testbed::free_port();
        let lease = format!("{lease_ms}ms");
        let options =
            ["--zmq", &format!("127.0.0.1:{zmq}"), "--shard-lease", &lease, "--shard-check", "500ms"];
        let options = options.map(str::to_owned).to_vec();
        let mut coordinator = Self { coordinator: Coordinator::prepared(), options, zmq };
        coordinator.launch();
        coordinator
    }

    /// With the times that the seed says, which are the defaults.
    pub(crate) fn of_the_seed() -> Self {
        let zmq = orchestrix_testbed::free_port();
        let options = ["--zmq", &format!("127.0.0.1:{zmq}")].map(str::to_owned).to_vec();
        let mut coordinator = Self { coordinator: Coordinator::prepared(), options, zmq };
        coordinator.launch();
        coordinator
    }

    pub(crate) fn launch(&mut self) {
        let options: Vec<&str> = self.options.iter().map(String::as_str).collect();
        self.coordinator.launch_with(&options);
    }

    /// Kills the coordinator without a warning.
    pub(crate) fn kill(&mut self) {
        self.coordinator.kill();
    }

    pub(crate) fn tcp(&self) -> String {
        format!("tcp://127.0.0.1:{}", self.zmq)
    }

    pub(crate) fn http(&self) -> String {
        self.coordinator.url()
    }

    /// What the coordinator says of a service.
    fn view(&self, service: &str) -> Option<Value> {
        let answer = self.coordinator.get(&format!("/v1/services/{service}"))?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    }

    /// The value of a metric without labels.
    pub(crate) fn metric(&self, name: &str) -> Option<u64> {
        let answer = self.coordinator.get("/metrics")?;
        let line = answer.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.trim().parse().ok()
    }

    /// What the command line prints.
    pub(crate) fn run(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.coordinator.run(arguments).stdout).unwrap()
    }

    /// How many shards are in a state.
    pub(crate) fn count(&self, service: &str, state: &str) -> usize {
        let Some(view) = self.view(service) else { return 0 };
        let shards = view["shards"].as_array().into_iter().flatten();
        shards.filter(|shard| shard["state"] == state).count()
    }

    /// Who holds every shard that is held.
    pub(crate) fn holders(&self, service: &str) -> BTreeMap<u32, String> {
        let Some(view) = self.view(service) else { return BTreeMap::new() };
        let shards = view["shards"].as_array().into_iter().flatten();
        let held = shards.filter(|shard| shard["state"] == "HELD");
        held.map(|shard| {
            let number = u32::try_from(shard["shard"].as_u64().unwrap()).unwrap();
            (number, shard["worker"].as_str().unwrap().to_owned())
        })
        .collect()
    }
}
