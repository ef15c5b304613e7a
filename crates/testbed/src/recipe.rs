//! How a server is set up and started, and when it is ready.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Result, free_port};

type Prepare = dyn Fn(&Path) -> Result + Send + Sync;
type Launch = dyn Fn(&Place) -> Result<Command> + Send + Sync;
type More = dyn Fn(&Place, &mut Command) + Send + Sync;
type Ready = dyn Fn(&Place) -> bool + Send + Sync;
type Under = dyn Fn() -> Command + Send + Sync;

/// Where a server keeps its files and where it listens.
#[derive(Clone, Debug)]
pub struct Place {
    /// Its own. `log` in it has what the server prints.
    pub folder: PathBuf,
    /// Where it listens.
    pub address: SocketAddr,
}

/// Everything that it takes to start a server, again and again.
pub struct Recipe {
    pub(crate) name: String,
    pub(crate) address: SocketAddr,
    prepare: Vec<Box<Prepare>>,
    launch: Box<Launch>,
    more: Vec<Box<More>>,
    ready: Box<Ready>,
    under: Option<Box<Under>>,
}

impl Recipe {
    /// A server on a free port of loopback.
    pub fn new(
        name: &str,
        launch: impl Fn(&Place) -> Result<Command> + Send + Sync + 'static,
        ready: impl Fn(&Place) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            name: name.to_owned(),
            address: SocketAddr::from((Ipv4Addr::LOCALHOST, free_port())),
            prepare: Vec::new(),
            launch: Box::new(launch),
            more: Vec::new(),
            ready: Box::new(ready),
            under: None,
        }
    }

    /// The same on this port.
    #[must_use]
    pub fn on_port(mut self, port: u16) -> Self {
        self.address.set_port(port);
        self
    }

    /// The same at another address of this machine.
    #[must_use]
    pub fn at(mut self, host: IpAddr) -> Self {
        self.address.set_ip(host);
        self
    }

    /// The same, started as the last words of another command.
    #[must_use]
    pub fn under(mut self, under: impl Fn() -> Command + Send + Sync + 'static) -> Self {
        self.under = Some(Box::new(under));
        self
    }

    /// Does this in its folder, too, before it is started for the first time.
    #[must_use]
    pub fn prepared(mut self, prepare: impl Fn(&Path) -> Result + Send + Sync + 'static) -> Self {
        self.prepare.push(Box::new(prepare));
        self
    }

    /// Adds to its command.
    #[must_use]
    pub fn with(mut self, more: impl Fn(&Place, &mut Command) + Send + Sync + 'static) -> Self {
        self.more.push(Box::new(more));
        self
    }

    /// Adds settings to its command.
    #[must_use]
    pub fn set(self, settings: &[&str]) -> Self {
        let settings: Vec<String> = settings.iter().map(|setting| (*setting).to_owned()).collect();
        self.with(move |_, command| {
            command.args(&settings);
        })
    }

    pub(crate) fn prepare(&self, folder: &Path) -> Result {
        self.prepare.iter().try_for_each(|prepare| prepare(folder))
    }

    pub(crate) fn command(&self, place: &Place) -> Result<Command> {
        let mut server = (self.launch)(place)?;
        self.more.iter().for_each(|more| more(place, &mut server));
        let Some(under) = &self.under else { return Ok(server) };
        let mut command = under();
        command.arg(server.get_program()).args(server.get_args());
        Ok(command)
    }

    pub(crate) fn is_ready(&self, place: &Place) -> bool {
        (self.ready)(place)
    }
}

impl std::fmt::Debug for Recipe {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recipe").field("name", &self.name).field("address", &self.address).finish()
    }
}
