# GPU Fleet. `make dev` and `make test` do all the set-up themselves; `make help` lists the rest.
SHELL := /bin/sh
.DEFAULT_GOAL := help
PYTHON := .venv/bin/python
# Runs a command with the toolchain's programs on the PATH.
WITH_TOOLS := $(PYTHON) -m gpu_fleet.toolchain run --
# Gets the programs that a stack needs, or says which one is missing and how to install it.
PROGRAMS_FOR := $(PYTHON) -m gpu_fleet.operations.programs --stack
SETUP := $(PYTHON) -m gpu_fleet.toolchain install
# The lab's stand-ins for what cannot be installed: for the stack `dev`, and to try out a stack without real hosts or clusters.
ifneq ($(filter 1,$(STAND_INS))$(filter dev,$(STACK)),)
export STAND_INS
WITH_TOOLS := $(PYTHON) -m lab.standins run --
PROGRAMS_FOR := $(PYTHON) -m lab.standins install --quiet --stack
SETUP := $(PYTHON) -m lab.standins install --setup
endif
# What listens on loopback (the servers of `dev`, port-forwards) is asked directly, whatever proxy this machine has.
export no_proxy := $(or $(no_proxy),$(NO_PROXY)),127.0.0.1,localhost
# tcsh exports HOST, the name of this machine: only `make up HOST=…` limits a run to some hosts.
ifeq ($(origin HOST),environment)
HOST :=
endif
# STACKS: the directory of the stack files, if not this one (docs/own-directory.md). The stack `dev` is always in this one.
ON_STACKS := preview up up-all destroy shell artifacts pull-bundle new-stack known-hosts check status usage reliability drift-report evidence gpu-load rules dashboards dashboards-pull pr-report policies test-alert gitlab-note gitlab-issue gitlab-deployed gitlab-pipeline
$(ON_STACKS): export GPU_FLEET_STACKS := $(if $(filter dev,$(STACK)),,$(STACKS))
BUILD := $(if $(STACKS),$(STACKS)/)build
# `pulumi preview` and `pulumi up` with the options for many hosts (docs/operating.md).
DEPLOY := $(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.deploy

.PHONY: help
help:
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' Makefile

# --- set-up ---------------------------------------------------------------------------------------------------------

# The first that is new enough and can make .venv. The system's own comes first: distributions optimize theirs by a profile, pyenv
# only on request, and without it every run of the program takes a third more CPU time.
BASE_PYTHONS := /usr/bin/python3 python3
.venv/installed: requirements.txt
	@for python in $(BASE_PYTHONS); do \
	  "$$python" -c 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && found=$$python && break; done; \
	if [ -z "$$found" ]; then \
	  command -v "$$python" >/dev/null || { echo "python3 (3.11 or newer) is needed: apt-get install python3 python3-venv"; exit 1; }; \
	  "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "python3 is $$("$$python" -V 2>&1); 3.11 or newer is needed"; exit 1; }; \
	  echo "python3 has no venv module: apt-get install python3-venv"; exit 1; \
	fi; \
	echo "==> Python packages of requirements.txt into .venv"; "$$found" -m venv .venv
	@# --no-compile: most modules of the provider SDKs are never imported, and compiling them takes longer than all the rest.
	@PIP_CACHE_DIR="$${XDG_CACHE_HOME:-$$HOME/.cache}/gpu-fleet/pip" $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.txt
	@touch $@

# What tests, the lab and the bench need beyond that: no command for real stacks does.
.venv/installed-dev: requirements-dev.txt .venv/installed
	@echo "==> Python packages of requirements-dev.txt into .venv"
	@PIP_CACHE_DIR="$${XDG_CACHE_HOME:-$$HOME/.cache}/gpu-fleet/pip" $(PYTHON) -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements-dev.txt
	@touch $@

.PHONY: setup
setup: .venv/installed ## install the Python packages, Pulumi, its plugins and Helm: what every real stack may need
	@$(SETUP) $(if $(filter setup,$(MAKECMDGOALS)),,--quiet) >&2

.PHONY: lab-setup
lab-setup: .venv/installed-dev
	@$(PYTHON) -m lab.standins install --quiet >&2

# --- the dev datacenter ---------------------------------------------------------------------------------------------

.PHONY: dev dev-xid dev-down
dev: lab-setup ## run this machine as a one-host GPU datacenter with 8 simulated GPUs; JOBS=1, as root: with a real Slurm
	@$(PYTHON) -m lab.dev up $(if $(JOBS),--jobs)

dev-xid: .venv/installed-dev ## inject an XID and wait for its alert: make dev-xid XID=79 GPU=3
	@$(PYTHON) -m lab.dev xid --code "$(or $(XID),79)" --gpu "$(or $(GPU),3)"

dev-down: .venv/installed-dev ## stop and remove everything of the dev datacenter
	@$(PYTHON) -m lab.dev down

# --- stacks ---------------------------------------------------------------------------------------------------------

.PHONY: preview artifacts offline-kit up up-all destroy shell new-stack pull-bundle known-hosts check policies status usage reliability drift-report evidence gpu-load test-alert
preview: .venv/installed ## show what `make up` would change: make preview STACK=us-west-training; PLAN=hosts queries the hosts too
	@$(PROGRAMS_FOR) "$(STACK)" >&2
	@$(DEPLOY) preview --stack "$(STACK)" --host "$(HOST)"

up: .venv/installed ## deploy a stack after confirming the preview: make up STACK=us-west-training, HOST='gpu-node-*' for some hosts, YES=1 without asking
	@$(PROGRAMS_FOR) "$(STACK)" >&2
	@$(DEPLOY) up --stack "$(STACK)" --host "$(HOST)" $(if $(YES),--yes --skip-preview)

up-all: .venv/installed ## deploy every stack file but dev, one after the other, without confirmation: preview them first
	@failed=; for stack in $$(cd "$(or $(STACKS),.)" && ls | sed -n 's/^Pulumi\.\(.*\)\.yaml$$/\1/p' | grep -vx dev); do echo "==> $$stack"; \
	  { $(PROGRAMS_FOR) "$$stack" >&2 && $(DEPLOY) up --stack "$$stack" --yes --skip-preview; } || failed="$$failed $$stack"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

destroy: .venv/installed ## remove a stack after saying what goes and what stays: make destroy STACK=us-west-training, YES=1 without asking
	@$(PROGRAMS_FOR) "$(STACK)" >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.destroy --stack "$(STACK)" $(if $(YES),--yes)

shell: .venv/installed ## open a shell with this project's pulumi and a stack selected: make shell STACK=us-west-training
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.shell --stack "$(STACK)"

artifacts: .venv/installed ## copy the hosts' programs to build/artifacts, for `artifacts: {source: controller}`: make artifacts STACK=s ARCH="amd64 arm64"
	@$(PYTHON) -m $(if $(filter 1,$(STAND_INS)),lab.standins artifacts,gpu_fleet.operations.artifacts) build/artifacts \
	  $(if $(STACK),--stack "$(STACK)") $(foreach arch,$(ARCH),--arch $(arch))

offline-kit: .venv/installed ## write one archive for a site without internet: make offline-kit STACK=s ARCH="amd64 arm64" PYTHONS="3.11 3.13"
	@$(WITH_TOOLS) $(PYTHON) -m $(if $(filter 1,$(STAND_INS)),lab.standins offline-kit,gpu_fleet.operations.offline_kit) \
	  $(if $(STACK),--stack "$(STACK)") $(foreach arch,$(ARCH),--arch $(arch)) $(foreach python,$(PYTHONS),--python $(python))

pull-bundle: .venv/installed ## write what hosts in pull mode fetch: make pull-bundle STACK=s KEY=~/.ssh/gpu-fleet-signing [NOW=1] [STOP=1]
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.pull_bundle --stack "$(STACK)" $(foreach key,$(or $(KEY),$(HOME)/.ssh/gpu-fleet-signing),--key "$(key)") \
	  --to "$(or $(OUT),build/pull)" --url "$(URL)" $(if $(NOW),--now) $(if $(STOP),--stop)

new-stack: .venv/installed ## write a stack file, create its stack and secrets: make new-stack DATACENTER=us-west CLUSTER=training
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.new_stack --datacenter "$(DATACENTER)" --cluster "$(CLUSTER)" \
	  --metrics-url "$(METRICS_URL)" --logs-url "$(LOGS_URL)" --push-user "$(PUSH_USER)" --logs-user "$(LOGS_USER)"

known-hosts: .venv/installed ## collect the hosts' SSH keys for review: make known-hosts STACK=us-west-training
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.known_hosts --stack "$(STACK)"

check: .venv/installed ## report drift on every host and in every cluster, changing nothing: make check STACK=us-west-training
	@$(PROGRAMS_FOR) "$(STACK)" >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.check --stack "$(STACK)"

policies: .venv/installed ## check what a stack would register against the policies, offline: make policies STACK=s; without STACK every stack
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet helm >&2 || true # without it, rendered charts are not checked
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.policies --stack "$(STACK)"

status: .venv/installed ## show the hosts of a stack: exporter, driver, GPUs, last data, drift, firing alerts: make status STACK=us-west-training
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.status --stack "$(STACK)"

usage: .venv/installed ## write the GPU-hours of a month as CSV, by model, state, account, user and namespace: make usage STACK=s MONTH=2026-10 TO=usage.csv PRICES=observability
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.usage --stack "$(STACK)" --month "$(MONTH)" --to "$(or $(TO),-)" --prices "$(PRICES)"

reliability: .venv/installed ## write the failures, availability and repairs of a month's hosts as CSV: make reliability STACK=s MONTH=2026-10 TO=hosts.csv
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.reliability --stack "$(STACK)" --month "$(MONTH)" --to "$(or $(TO),-)"

drift-report: .venv/installed ## run `make check` for every stack and write one report for an issue: make drift-report TO=build/drift.md
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.drift_report --to "$(or $(TO),build/drift.md)"

evidence: .venv/installed ## collect what a broken host says, and an hour of its metrics: make evidence STACK=s HOST=gpu-node-017 TO=build/evidence
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet pulumi >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.evidence --stack "$(STACK)" --host "$(HOST)" --to "$(or $(TO),build/evidence)"

gpu-load: .venv/installed ## put load on a GPU and check that it reaches Mimir: make gpu-load STACK=s TEST=1004 DURATION=45 HOST=gpu-node-001
	@$(PROGRAMS_FOR) "$(STACK)" >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.gpu_load --stack "$(STACK)" --test "$(or $(TEST),1004)" \
	  --duration "$(or $(DURATION),45)" --host "$(HOST)" --resource "$(or $(RESOURCE),nvidia.com/gpu)"

test-alert: .venv/installed ## send a test alert from a host to the receivers and report each stage: make test-alert STACK=s HOST=name SEVERITY=warning
	@$(PROGRAMS_FOR) "$(STACK)" >&2
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.alert_path --stack "$(STACK)" --host "$(HOST)" --severity "$(or $(SEVERITY),critical)"

# --- working on the project -----------------------------------------------------------------------------------------

.PHONY: test machine release-notes gitlab-note gitlab-issue gitlab-deployed gitlab-pipeline bench bench-rules scorecard powercut mutants lint style regen pin lock dashboards rules dashboards-diff pr-report dashboards-pull showcase pictures generate site
test: export NO_STAND_INS := $(filter 1,$(OFFICIAL))
test: machine style ## run lint and every test; OFFICIAL=1: with no stand-in
	@$(if $(filter 1,$(OFFICIAL)),$(PYTHON) -m gpu_fleet.toolchain install --all --retry-upstream,$(PYTHON) -m lab.standins install --quiet --all) >&2
	@# Types are checked meanwhile. More processes than cores: most tests wait for a service to come up. A file stays in one process,
	@# which starts its hosts, cluster or datacenter once; files begin in the order of their names.
	@types=$$(mktemp); $(PYTHON) -m mypy --no-error-summary >"$$types" 2>&1 & mypy=$$!; \
	  $(PYTHON) -m pytest -n 6 --dist loadfile --no-loadscope-reorder --durations=20; failed=$$?; \
	  $(if $(filter 1,$(OFFICIAL)),$(WITH_TOOLS) $(PYTHON) -m tests.kubernetes.official_charts || failed=1;) \
	  wait $$mypy || failed=1; cat "$$types"; rm "$$types"; exit $$failed

machine: .venv/installed-dev # everything that this machine lacks for the tests, at once
	@$(PYTHON) -m lab.requirements

bench: lab-setup ## measure the cost of 1, 10, 100 and 1,000 hosts, on real ones also Ansible's (root); .dev/bench.json
	@$(PYTHON) -m bench

scorecard: lab-setup ## replay fault tapes through the real stack and score what is notified: make scorecard TAPES='xid-*' MODES=dcgm,smi AT_ONCE=80
	@$(PYTHON) -m lab.scorecard --tapes "$(or $(TAPES),*)" --modes "$(MODES)" --at-once $(or $(AT_ONCE),80) $(if $(RULES),--rules $(RULES)) $(if $(KEEP),--keep "$(KEEP)")

bench-rules: lab-setup ## measure what the rules cost in Mimir for GPUS=100,500,2000, and write it to bench/README.md
	@$(PYTHON) -m bench.rules $(if $(GPUS),--gpus "$(GPUS)") --write

powercut: lab-setup ## cut the power of hosts, and kill runs, at N random instants each (root): make powercut N=200 SEED=1
	@$(PYTHON) -m lab.powercut --cuts $(or $(N),200) --kills $(or $(N),200) $(if $(SEED),--seed $(SEED))

mutants: .venv/installed-dev ## check that the rule tests fail for each changed threshold, operator and `for`; CHANGED=1: only of changed rules
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet promtool >&2
	@$(PYTHON) -m tests.alerts.mutants $(if $(CHANGED),--changed)

lint: style ## run ruff, mypy, shellcheck and the check for words of tests/words.yaml
	@$(PYTHON) -m gpu_fleet.toolchain system shellcheck
	@$(PYTHON) -m mypy --no-error-summary
	@$(PYTHON) -m pytest --quiet tests/test_shell.py tests/test_words.py

style: .venv/installed-dev
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .

regen: .venv/installed-dev ## rewrite the golden files; review their diff
	@$(PYTHON) -m lab.standins install --quiet --all >&2
	@$(PYTHON) -m pytest --regen

pin: .venv/installed ## write the publishers' checksums of what is unpinned to gpu_fleet/toolchain/versions.yaml; SINCE=commit: and of changed versions
	@$(PYTHON) -m gpu_fleet.toolchain pin $(if $(SINCE),--since "$(SINCE)")

lock: .venv/installed ## write requirements.txt and requirements-dev.txt from their .in files, with hashes
	@$(PYTHON) -m pip install --quiet uv
	@for name in requirements requirements-dev; do \
	  $(PYTHON) -m uv pip compile --quiet --generate-hashes --no-emit-index-url --no-header --universal --python-version 3.11 \
	    $$name.in -o $$name.txt || exit 1; \
	done

dashboards: .venv/installed ## write the dashboards' JSON to build/dashboards, for review and import: make dashboards STACK=s, or PRICE=2.5
	@$(if $(STACK),$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.dashboards "$(BUILD)/dashboards" --stack "$(STACK)", \
	  $(PYTHON) -m dashboards "$(BUILD)/dashboards" $(if $(PRICE),--price "$(PRICE)" --currency "$(or $(CURRENCY),USD)"))

rules: .venv/installed ## write rules to load without Pulumi to build/rules: make rules FOR=prometheus|mimir|loki|operator STACK=s RUNBOOKS=URL LABELS=release=x
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.rules "$(FOR)" build/rules --stack "$(STACK)" --namespace "$(or $(NAMESPACE),monitoring)" \
	  --labels "$(LABELS)" $(if $(RUNBOOKS),--runbook-url "$(RUNBOOKS)")

dashboards-diff: .venv/installed ## show what changed in the dashboards since a commit, in words: make dashboards-diff SINCE=origin/main
	@old=$$(mktemp -d) && trap 'rm -rf "$$old"' EXIT && git archive "$(or $(SINCE),origin/main)" | tar -x -C "$$old" \
	  && (cd "$$old" && "$(CURDIR)/$(PYTHON)" -m dashboards built --price 1 >/dev/null) \
	  && $(PYTHON) -m dashboards build/dashboards --price 1 >/dev/null && $(PYTHON) -m dashboards.review "$$old/built" build/dashboards

pr-report: .venv/installed ## show what this branch changes in each stack, in words, without credentials: make pr-report BASE=main TO=build/pr-report.md
	@$(PYTHON) -m gpu_fleet.toolchain install --quiet helm >&2 || true # without it, rendered charts are not compared
	@$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.pr_report --base "$(or $(BASE),main)" $(if $(ALSO),--also $(ALSO)) $(if $(TO),--to "$(TO)") $(if $(LIMIT),--limit "$(LIMIT)") \
	  $(if $(PRICE),--price "$(PRICE)") $(if $(PREVIEW),--preview) $(if $(STACKS_TO),--stacks "$(STACKS_TO)")

gitlab-note: .venv/installed ## in GitLab CI: write FROM=comment.md as the one note of the merge request
	@$(PYTHON) -m gpu_fleet.operations.gitlab note --file "$(FROM)"

gitlab-issue: .venv/installed ## in GitLab CI: open, update or close the issue about drift: FROM=build/drift.md FOUND=yes|no
	@$(PYTHON) -m gpu_fleet.operations.gitlab issue --file "$(FROM)" --found "$(FOUND)"

gitlab-deployed: .venv/installed ## in GitLab CI: print the commits that were deployed last
	@$(PYTHON) -m gpu_fleet.operations.gitlab deployed

gitlab-pipeline: .venv/installed ## in GitLab CI: write a pipeline with one job per stack: FROM=build/stacks.json CANARY=s TO=build/deploy.yml
	@$(PYTHON) -m gpu_fleet.operations.gitlab pipeline --file "$(FROM)" --canary "$(CANARY)" --to "$(TO)"

dashboards-pull: .venv/installed ## show edits made by hand in Grafana, in words: GRAFANA_AUTH=... make dashboards-pull STACK=observability UID=gpu-fleet-host
	@if [ -z "$$GRAFANA_AUTH" ] && [ "$(or $(STACK),dev)" = dev ] && [ -f .dev/endpoints.env ]; then \
	  . ./.dev/endpoints.env; GRAFANA_AUTH="admin:$$(cat .dev/grafana-password)"; export GRAFANA_URL GRAFANA_AUTH; fi; \
	$(WITH_TOOLS) $(PYTHON) -m gpu_fleet.operations.dashboards_pull --stack "$(or $(STACK),dev)" --uid "$(UID)" --to build/pulled

showcase: lab-setup ## show the dashboards over a simulated fleet with every exporter, an hour of history and incidents; until Ctrl-C
	@$(PYTHON) -m lab.showcase

release-notes: .venv/installed ## write this version's section of CHANGELOG.md to TO; with TAG=v0.1.0, refuse what cannot be released as that
	@$(PYTHON) -m gpu_fleet.operations.release --tag "$(TAG)" --to "$(or $(TO),build/release-notes.md)"

site: .venv/installed-dev ## build the documents as a site, with the reference: make site REPOSITORY=https://example.com/gpu-fleet; build/site
	@$(PYTHON) -m gpu_fleet.operations.site build/site-pages --repository "$(REPOSITORY)"
	@NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --quiet --strict && echo "build/site/index.html"

pictures: lab-setup ## save screenshots of every dashboard over the showcase to docs/pictures
	@$(PYTHON) -m lab.showcase --pictures docs/pictures

generate: .venv/installed ## write what is derived from the tables and the sections: rules, and the JSON schema of the stack file
	@$(PYTHON) -m alerts.generate
	@$(PYTHON) -m gpu_fleet.stackfile schema
