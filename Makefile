# ledgerd: `make` lists the targets. Needs Go, git and bash; .ci/run installs everything else on a bare Debian.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.SUFFIXES:

PKG       ?= ./...# packages of test and bench
TESTFLAGS ?=# more flags for go test, such as -run Transfer
FUZZTIME  ?= 10s# for each fuzz target
COUNT     ?= 6# runs of each benchmark

# The build tools are pinned, in tools/go.mod and tools/npm. Only the race detector needs a C compiler; the tools and
# the server do not. All programs of the project that make check runs have the race detector, so that each package is
# compiled once.
TOOL   := tools/tool
TOOLS  := CGO_ENABLED=0 go -C tools
WITHPG = go run $(RACE) ./internal/pgtest/cmd/withpg --
RACE   := $$(tools/lacking | grep -q 'race detector' || echo -race)
# By default a program with the race detector sleeps for a second at its end, and tests start hundreds of programs.
export GORACE := atexit_sleep_ms=0

# Other generators, one command a line, run after buf and sqlc.
define GENERATORS
go run $(RACE) ./internal/refdoc docs/reference
go run $(RACE) ./internal/pgtest/cmd/schema db/schema/expected.txt
endef

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z\/]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@sed -n 's/^\([A-Z]*\)  *?= *\([^#]*\)# *\(.*\)/  \1=\2  \3/p' $(firstword $(MAKEFILE_LIST))

.PHONY: run
run: ## Server with its own Postgres and sample data, nothing to set up
	@# Not go run: it reports Ctrl-C as a failure, and SIGTERM ends it without ending the server.
	@program=$${XDG_CACHE_HOME:-$$HOME/.cache}/ledgerd/dev/ledgerd; mkdir -p "$${program%/*}"; \
	(set -x; CGO_ENABLED=0 go build -buildvcs=false -ldflags='-s -w' -o "$$program" ./cmd/ledgerd); exec "$$program" dev

.PHONY: build
build: ## bin/ledgerd, static and without debug data, as for a release
	CGO_ENABLED=0 go build -trimpath -ldflags='-s -w' -o bin/ledgerd ./cmd/ledgerd

.PHONY: test
test: ## All tests, on a throw-away Postgres, with the race detector and go vet
	@# -count=1: a cached result may belong to another Postgres, because go test does not track installed programs. -w:
	@# without debug data, linking takes half the time. GOGC: the race detector makes garbage collection expensive. -p:
	@# many tests wait for leases and restarted servers; one package more than there are cores uses that time.
	$(TOOLS) test -vet=all ./...
	@lacking=$$(tools/lacking); race="$(RACE)"; \
	tell() { if [[ -n $$lacking ]]; then sed 's/.*/*** & ***/' <<<"$$lacking" >&2; fi; }; tell; trap tell EXIT; \
	(set -x; GOGC=400 $(WITHPG) go test -p=$$(($$(getconf _NPROCESSORS_ONLN) + 1)) $$race -vet=all -ldflags=-w -tags browser -count=1 -timeout=20m $(TESTFLAGS) $(PKG))

.PHONY: lint
lint: ## gofmt, staticcheck, buf, our own rules (tools/tidy), subjects of commits; go vet runs with the tests
	@found=$$(find . -name '.?*' -prune -o -name node_modules -prune -o -name '*.go' -print0 | xargs -0 gofmt -l); \
	if [[ -n $$found ]]; then echo 'not formatted, run gofmt -w:' $$found; exit 1; fi
	$(TOOLS) run ./tidy ..
	@{ git log -20 --format=%s 2>/dev/null || :; } | awk 'length > 72 { print "subject of a commit is longer than 72: " $$0; bad = 1 } END { exit bad }'
	$(TOOL) buf lint
	@tag=$$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) || exit 0; \
	set -x; $(TOOL) buf breaking --against ".git#tag=$$tag"
	GOGC=200 TOOL_GOFLAGS="-tags=browser $(RACE)" $(TOOL) staticcheck ./...
	cd tools && ./tool staticcheck ./...

.PHONY: generate
generate: proto-vendor/buf/validate/validate.proto ## All generated code: protobuf, queries, reference pages
	$(TOOL) buf generate
	$(TOOL) sqlc generate
	$(GENERATORS)

proto-vendor/buf/validate/validate.proto:
	$(TOOLS) run ./cmd/vendorproto ..

.PHONY: vendorproto
vendorproto: ## Vendored protos, written again from the pinned modules
	$(TOOLS) run ./cmd/vendorproto ..

.PHONY: verify
verify: ## Fails if generated files are out of date, or go.mod is untidy or has untagged modules
	@tools/verify

.PHONY: marks
marks: ## Readability: widths, words, exports, and the code on the way of one Transfer, Send and Begin
	@dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; set -e; \
	CGO_ENABLED=0 go build -cover -covermode=atomic -coverpkg=./internal/... -o "$$dir/journeys" ./internal/server/journeys; \
	GOCOVERDIR=$$dir $(WITHPG) "$$dir/journeys" "$$dir" >&2; \
	for call in Transfer Send Begin; do go tool covdata textfmt -i="$$dir/$$call" -o "$$dir/$$call.txt"; done; \
	$(TOOLS) run ./marks .. "$$dir"/*.txt

.PHONY: check
check: ## The stages of CI: lint, verify, test
	@for stage in lint verify test; do \
		start=$$SECONDS; \
		$(MAKE) --no-print-directory $$stage || { echo "== $$stage FAILED after $$((SECONDS - start)) s"; exit 1; }; \
		echo "== $$stage took $$((SECONDS - start)) s"; \
	done

.PHONY: bench
bench: ## Go benchmarks, compared with .bench/old.txt if you kept one
	@mkdir -p .bench
	@set -o pipefail; $(WITHPG) go test -run '^$$' -bench . -benchmem -count $(COUNT) $(PKG) | tee .bench/new.txt
	@if [[ -f .bench/old.txt ]]; then $(TOOL) benchstat .bench/old.txt .bench/new.txt; \
	else echo 'To compare the next run with this one: cp .bench/new.txt .bench/old.txt'; fi

.PHONY: fuzz
fuzz: ## Each fuzz target for FUZZTIME
	@$(WITHPG) tools/fuzz $(FUZZTIME)

.PHONY: db/psql
db/psql: ## psql on the database of `make run`, or on DATABASE_URL
	@state=$${XDG_STATE_HOME:-$$HOME/.local/state}/ledgerd; if ((EUID == 0)); then state=/var/lib/ledgerd; fi; \
	psql "$${DATABASE_URL:-host=$$state/run user=postgres dbname=ledgerd}"

.PHONY: clean
clean: ## Built binaries and benchmark results; the database of `make run` stays
	rm -rf bin .bench
