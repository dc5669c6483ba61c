# Two commands from a fresh clone: `make demo` and `make test`. Each sets up what it needs, once.
.DEFAULT_GOAL := help
BIN := .venv/bin

.PHONY: help venv compile programs demo test quick check format proto bench bench-capture bench-cdc bench-core bench-fleet bench-gateway bench-kinesis bench-ordered bench-proxy bench-quick bench-replay bench-spark-ordered bench-stack proxy-matrix soak clean

help: ## what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

venv: .venv/.ready ## a .venv with the package and all that tests and benches need, and Kafka in the user's cache

.venv/.ready: pyproject.toml constraints.txt tools/make-venv
	@tools/make-venv

compile: venv ## what a replay does for each request, compiled anew where a source was edited; without it all works, more slowly
	@$(BIN)/python tools/compile.py

programs: ## Chromium and kcat for the tests, where they are missing and root may install them
	@tools/need-programs

demo: venv ## the product's main job, on real servers
	@$(BIN)/strandline demo

test: venv programs ## the whole suite, in four processes with servers of their own: most tests wait most of the time
	@$(BIN)/pytest -n 4

quick: venv ## laws, parsers, pure cores and configuration, without any server: what to run while you edit
	@$(BIN)/pytest -n 2 -m 'not soak and not server' --hypothesis-profile quick

check: venv ## formatting, lint, types, import contracts
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: venv ## format the code
	@$(BIN)/ruff format
	@$(BIN)/ruff check --fix

proto: venv ## the module of captured traffic anew, from its .proto
	@$(BIN)/python -m grpc_tools.protoc -I src --python_out=src --pyi_out=src strandline/wire/traffic.proto

bench: bench-capture bench-cdc bench-core bench-fleet bench-gateway bench-kinesis bench-ordered bench-proxy bench-replay bench-spark-ordered bench-stack ## every benchmark

bench-quick: venv ## every benchmark and soak trial once with small amounts, in minutes: that they run, not how fast
	@$(BIN)/python -m bench.quick

bench-core: venv ## the frontier: speed and size
	@$(BIN)/python -m bench.core

bench-cdc: venv ## changes of Postgres into Kinesis: how fast, how late, and how long nothing when the leader is killed
	@$(BIN)/python -m bench.cdc

bench-fleet: compile ## traffic replayed by a fleet on Spark, traffic as a table, and the report on 1,000,000 exchanges
	@$(BIN)/python -m bench.fleet
	@$(BIN)/python -m bench.traffic
	@$(BIN)/python -m bench.report

bench-gateway: venv ## Kafka in the browser: deliveries by a second of CPU, resumes from memory and from Kafka
	@$(BIN)/python -m bench.gateway

bench-kinesis: venv ## the stack's Kinesis endpoint alone, beside moto
	@$(BIN)/python -m bench.kinesis_endpoint

bench-ordered: venv ## a log read in the order of its time, beside confluent-kafka and kafkars
	@$(BIN)/python -m bench.ordered

bench-proxy: venv ## several Kafka clusters as one: writing and reading through the proxy against the cluster itself
	@$(BIN)/python -m bench.proxy

bench-replay: compile ## captured traffic replayed: how late, how fast, beside wrk where it is installed; and what the capture adds
	@$(BIN)/python -m bench.replay

bench-spark-ordered: venv ## the same on Spark, beside a source without Kafka
	@$(BIN)/python -m bench.spark_ordered

bench-stack: venv ## seconds from `strandline up` to ready, cold and warm
	@$(BIN)/python -m bench.stack

bench-capture: venv ## what the capture adds to a request, against the service without it
	@$(BIN)/python -m bench.capture

proxy-matrix: venv ## which clients were tried through the proxy, and with which versions of each API, into docs/proxy-matrix.md
	@$(BIN)/python -m tests.proxy.matrix

soak: venv ## trials too long for the suite
	@$(BIN)/pytest -n 2 -m soak
	@$(BIN)/python -m bench.soak
	@$(BIN)/python -m bench.soak_replay

clean: ## remove the environment; the cache in the user's home stays
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
