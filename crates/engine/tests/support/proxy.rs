//! A wire between an engine and its server that a test can cut, stall, or make lose answers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU16, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What happens to what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Wire {
    /// It arrives.
    Good = 0,
    /// Requests arrive, answers are lost and the connection breaks instead.
    LosesAnswers = 1,
    /// Nothing arrives, and nobody is told.
    Stalls = 2,
    /// Connections break and new ones are refused.
    Cut = 3,
}

/// The wire. Connect to [`Proxy::port`] instead of the server.
pub struct Proxy {
    port: u16,
    shared: Arc<State>,
}

struct State {
    wire: AtomicU8,
    /// What was sent and has not arrived, because the wire stalls.
    held: AtomicUsize,
    /// Directions of connections that are open.
    passing: AtomicUsize,
    ended: AtomicBool,
    open: Mutex<Vec<TcpStream>>,
    server: AtomicU16,
    /// A request with these bytes stalls the wire.
    held_at: Mutex<Vec<u8>>,
}

impl Proxy {
    pub fn to(server: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let state = State {
            wire: AtomicU8::new(0),
            held: AtomicUsize::new(0),
            passing: AtomicUsize::new(0),
            ended: AtomicBool::new(false),
            open: Mutex::default(),
            server: AtomicU16::new(server),
            held_at: Mutex::default(),
        };
        let shared = Arc::new(state);
        let accepting = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                if accepting.ended.load(SeqCst) {
                    return;
                }
                let Ok(client) = client else { continue };
                if accepting.is(Wire::Cut) {
                    continue;
                }
                let server = accepting.server.load(SeqCst);
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { continue };
                accepting.connect(client, server);
            }
        });
        Self { port, shared }
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// How many sendings are held by a wire that stalls.
    pub fn held(&self) -> usize {
        self.shared.held.load(SeqCst)
    }

    /// How many connections are open.
    pub fn connections(&self) -> usize {
        self.shared.passing.load(SeqCst).div_ceil(2)
    }

    /// Stalls the wire in front of the next request that has these bytes. A test changes what is behind it, and sets it
    /// [`Wire::Good`] again.
    pub fn hold_at(&self, bytes: &[u8]) {
        *self.shared.held_at.lock().unwrap() = bytes.to_vec();
    }

    /// Waits until a request is held.
    pub fn holds(&self) {
        let held = || (self.shared.is(Wire::Stalls) && self.held() > 0).then_some(());
        orchestrix_testbed::eventually("a request is held", held);
    }

    /// Another server is behind the same address from now on, as after a failover.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, SeqCst);
        self.shared.break_all();
    }

    pub fn set(&self, wire: Wire) {
        self.shared.wire.store(wire as u8, SeqCst);
        if wire == Wire::Cut {
            self.shared.break_all();
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, SeqCst);
        self.shared.break_all();
        // Wakes the thread that accepts.
        drop(TcpStream::connect(("127.0.0.1", self.port)));
    }
}

impl State {
    fn is(&self, wire: Wire) -> bool {
        self.wire.load(SeqCst) == wire as u8
    }

    fn connect(self: &Arc<Self>, client: TcpStream, server: TcpStream) {
        let copies = [&client, &server].map(|stream| stream.try_clone().unwrap());
        self.open.lock().unwrap().extend(copies);
        for (from, to, answers) in
            [(client.try_clone().unwrap(), server.try_clone().unwrap(), false), (server, client, true)]
        {
            let state = Arc::clone(self);
            state.passing.fetch_add(1, SeqCst);
            std::thread::spawn(move || {
                state.pass(from, to, answers);
                state.passing.fetch_sub(1, SeqCst);
            });
        }
    }

    fn pass(&self, mut from: TcpStream, mut to: TcpStream, answers: bool) {
        let mut bytes = [0; 16 << 10];
        while let Ok(count) = from.read(&mut bytes)
            && count > 0
        {
            if !answers {
                self.stall_at(&bytes[..count]);
            }
            self.held.fetch_add(1, SeqCst);
            while self.is(Wire::Stalls) && !self.ended.load(SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            self.held.fetch_sub(1, SeqCst);
            if answers && self.is(Wire::LosesAnswers) || to.write_all(&bytes[..count]).is_err() {
                break;
            }
        }
        for stream in [from, to] {
            // It may be closed already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn stall_at(&self, request: &[u8]) {
        let mut held_at = self.held_at.lock().unwrap();
        if !held_at.is_empty() && request.windows(held_at.len()).any(|part| part == &held_at[..]) {
            held_at.clear();
            self.wire.store(Wire::Stalls as u8, SeqCst);
        }
    }

    fn break_all(&self) {
        for stream in self.open.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}
