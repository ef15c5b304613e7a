//! Cells of nodes that are long gone: that they delay nobody.

use std::sync::Arc;
use std::time::Duration;

use orchestrix_engine::{Claim, Register, Shared};
use orchestrix_leadership::{Candidate, Leadership, Options};

use crate::common::{PATIENT, new_prefix, place, shared, shared_store};
use crate::support::http::{Fate, Front};
use orchestrix_testbed::eventually;

const DEAD: usize = 1_000;
const TTL: Duration = Duration::from_secs(6);
/// Sixteen are read at once, so all of them take longer than the time of a leader lease.
const SLOW: Duration = Duration::from_millis(150);

#[test]
fn a_thousand_dead_cells_delay_no_renewal() {
    let prefix = new_prefix();
    let register = shared(&prefix).register();
    std::thread::scope(|scope| {
        for part in 0..10 {
            let register = Arc::clone(&register);
            scope.spawn(move || {
                for n in (part..DEAD).step_by(10) {
                    let claim = Claim { owner: format!("dead-{n}"), held: true, ..Claim::default() };
                    register.compare_and_set(&format!("nodes/dead-{n}"), None, &claim).unwrap();
                }
            });
        }
    });
    let front = Front::to(shared_store().s3);
    let is_dead = |path: &str| path.contains("dead-");
    front.rule(move |asked| if is_dead(&asked.path) { Fate::PassAfter(SLOW) } else { Fate::Pass });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _inside = runtime.enter();
    let slow: Arc<dyn Register> = place(front.port(), &prefix, PATIENT).register();
    let me = Candidate { name: "a".into(), incarnation: "1".into(), address: String::new() };
    let leader = Leadership::start(slow, "leader", me, Options::first_come(TTL), Vec::new()).unwrap();
    eventually("it leads", || leader.is_leader().then_some(()));
    // From here on: the first listing may have been before it led.
    drop(front.asked());
    let (token, mut read) = (leader.token(), 0);
    eventually("all cells were read", || {
        assert_eq!(leader.token(), token, "it leads all the while, after {read} cells");
        read += front.asked().iter().filter(|asked| is_dead(&asked.path)).count();
        (read >= DEAD).then_some(())
    });
    runtime.block_on(leader.stop());
}
