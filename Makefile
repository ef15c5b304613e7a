# Everything a newcomer needs is `make run` and `make test`.

DATA ?= data
LISTEN ?= 127.0.0.1:3000
CARGO ?= cargo

.PHONY: help run test check deny bench crash prove worlds bugs mutants fuzz fmt clean

help: ## Show what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

run: ## Build the coordinator and start it on the embedded engine
	@$(CARGO) build --release --locked --bin orchestrix
	@exec ./target/release/orchestrix serve --data $(DATA) --listen $(LISTEN)

test: ## Check and test everything; installs what the tests need
	@./scripts/test

check: ## Formatting, lints and documentation, without running tests
	@./scripts/check

deny: ## Licences, sources and banned crates of all dependencies
	@./scripts/deny

bench: ## Measure beside Redis Streams, beanstalkd, raw engines and etcd; writes docs/benchmarks.md
	@./scripts/bench

crash: ## Kill the coordinator under load, ROUNDS times, beginning with SEED
	@SEED=$(or $(SEED),1) ./scripts/prove --only kills --rounds $(or $(ROUNDS),500)

prove: ## Run worlds and real processes full of faults for SECONDS, beginning with SEED
	@SEED=$(or $(SEED),1) ./scripts/prove --seconds $(or $(SECONDS),60)

worlds: ## Run WORLDS simulated worlds of every kind from SEED, at low priority; goes on where it stopped
	@./scripts/worlds $(or $(WORLDS),100000) $(or $(SEED),1)

bugs: ## Plant bugs on purpose and show that worlds, SECONDS each, or tests find them
	@./scripts/bugs $(or $(SECONDS),30) $(or $(SEED),1)

mutants: ## Change the rules in FILES, one place at a time, and show that tests notice; MINUTES at most, AGAIN=1 goes on
	@FILES="$(FILES)" MINUTES="$(MINUTES)" AGAIN="$(AGAIN)" ./scripts/mutants

fuzz: ## Feed decoders with what nobody wrote for SECONDS in all, or only TARGET, one or several
	@SECONDS_IN_ALL=$(or $(SECONDS),60) TARGET="$(TARGET)" ./scripts/fuzz

fmt: ## Format the code
	@$(CARGO) fmt --all

clean: ## Remove what was built; data stays
	@$(CARGO) clean
