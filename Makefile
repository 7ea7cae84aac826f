# nvtrace: build, test and check. `make all` leaves bin/nvtrace; `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c

# Pinned tools, run with `go run`, so that nothing is installed on the machine
# and go.mod stays the program's own.
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
APIDIFF     := golang.org/x/exp/cmd/apidiff@v0.0.0-20261113113407-e3970619a1a4
BENCHSTAT   := golang.org/x/perf/cmd/benchstat@v0.0.0-20260908200009-22c9c6c9d4da

# ptxas, the oracle of the PTX tests, comes from NVIDIA's wheel on PyPI into .cache (ptx/testdata/ptxas.txt).
PTXAS       := $(CURDIR)/.cache/ptxas/nvidia/cu13/bin/ptxas
NVDISASM    := $(CURDIR)/.cache/nvdisasm/nvidia/cu13/bin/nvdisasm

NFPM        := github.com/goreleaser/nfpm/v2/cmd/nfpm@v2.45.2

# Binaries take their version from the repository's tags by themselves (go build -buildvcs).
# That of packages is the last tag's, or 0.1.0~dev before there is one.
VERSION ?= $(patsubst v%,%,$(shell git describe --tags --exact-match 2>/dev/null || echo v0.1.0~dev))
GOFLAGS_BUILD := -trimpath -ldflags '-s -w'
# On amd64, nvtrace begins with a look at the limit of its address space (cmd/nvtrace/entry_amd64.s).
nvtrace_flags = -trimpath -ldflags '-s -w $(if $(filter amd64,$(1)),-E main.entry)'
ARCHES := amd64 arm64
FUZZTIME ?= 30s# or a number of runs: 3000x
# A run of these takes ten to a hundred times as long as one of the others. They have a time, or number, of their own.
FUZZ_SLOW := FuzzEvents FuzzGrow FuzzMachine FuzzMessage FuzzReports FuzzScribbled
FUZZTIME_SLOW ?= $(FUZZTIME)

.PHONY: all quick api-diff dist sweep-probes sweep-fleet test race kill-sweep lint fmt generate rm-facts api-facts fuzz bench cuda check-gpu bench-gpu demo check ci deps-ptxas deps-nvdisasm deps-cuda testdata-cuda cross clean help docs deps-chromium deps-duckdb deps-clickhouse deps-spark test-bare check-receivers

all: ## build bin/nvtrace, bin/rminfo and bin/rmlaunch
	CGO_ENABLED=0 go build $(call nvtrace_flags,$(shell go env GOARCH)) -o bin/nvtrace ./cmd/nvtrace
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/rminfo ./examples/rminfo
	CGO_ENABLED=0 go build $(GOFLAGS_BUILD) -o bin/rmlaunch ./examples/rmlaunch

test: ## run the tests (Go and gcc are enough; tests that need more say so when they skip)
	go test -vet=off -timeout 1h ./...
	bash ptx/emu/testdata/gpurun/test/test.sh

# The packages of quick know no processes and no GPUs: their tests need nothing but Go.
QUICK := ./traces ./traces/escape ./traces/ranks ./ioctl ./ioctl/allow ./ioctl/diff ./ioctl/nearest ./rm ./fatbin ./ptx ./nvattach/api \
  ./nvattach/helper ./nvattach/nccl ./nvattach/values ./cmd/nvtrace/internal/observe ./cmd/nvtrace/internal/view ./cmd/nvtrace/internal/objects \
  ./cmd/nvtrace/internal/look ./cmd/nvtrace/internal/places ./internal/knots ./internal/prose
quick: ## the tests that take less than a minute in all, for who begins: formats, decoding, tables, reports
	go test -short $(QUICK)

api-diff: ## what programs that import the public packages notice since commit BASE (HEAD^)
	bash internal/face/apidiff.sh $(or $(BASE),HEAD^) $(APIDIFF)

# The race detector sees something only where this project's own code starts goroutines: packages are named by
# that, not by what they import, which has tests of its own. It has each program wait for a second at its end; tests
# run thousands. Oracles whose volume it can't see anything in are cut by -short. vet is golangci-lint's.
STARTS := ^\s*go (func|[A-Za-z_.]+\()|\.Go\(|AfterFunc\(
race: ## run the tests of packages that start goroutines under the race detector
	pkgs=$$(git grep -lE '$(STARTS)' -- '*.go' ':!*_test.go' ':!*/testdata/*' | xargs -n1 dirname | sort -u | sed 's,^,./,'); \
	GORACE=atexit_sleep_ms=0 go test -race -short -vet=off -timeout 1h $$pkgs

kill-sweep: ## kill tracers at each of their steps, and the next ones that take over: thousands of programs, hours
	NVTRACE_REQUIRE=stepkill go test ./ptrace/agent ./cmd/nvtrace -run 'TestUnharmed|TestPiecesLeft|TestKilled' -v -timeout 12h

sweep-fleet: ## faults planted in jobs of 8 simulated ranks, each 20 times; 1,024 ranks with ten million events (not in CI)
	go test ./cmd/nvtrace/internal/fleet -run 'TestPlanted|TestMillions' -v -timeout 2h -args -rounds 20 -ranks 8 -steps 1000

lint: ## formatting; files that use one another; golangci-lint, which has vet and staticcheck (the import graph is a test)
	@out=$$(go run $(GOFUMPT) -l $$(git ls-files "*.go")); test -z "$$out" || { echo "not gofumpt-formatted: $$out"; exit 1; }
	go run ./internal/knots
	go run $(GOLANGCI) run --timeout 15m ./...

fmt: ## format the tree
	go run $(GOFUMPT) -w $$(git ls-files "*.go")

generate: ## regenerate tables, compiled files and the GPU vectors' programs (what has not changed is only checked)
	go generate ./...
	go run ./ptx/emu/testdata/vectors/gen ptx/emu/testdata/vectors

rm-facts: ## extend rm/facts from a checkout of NVIDIA's open kernel modules: make rm-facts OGKM=dir
	@test -n "$(OGKM)" || { echo "usage: make rm-facts OGKM=dir-of-open-gpu-kernel-modules"; exit 2; }
	go run ./rm/internal/gen facts -src "$(OGKM)" -facts rm/facts
	$(MAKE) generate

api-facts: ## extend nvattach/api/facts from CUDA's headers: make api-facts CUDA=dir[,dir...] RELEASE=13.0
	@test -n "$(RELEASE)" || { echo "usage: make api-facts CUDA=dir[,dir...] RELEASE=N.N"; exit 2; }
	go run ./nvattach/api/internal/gen facts -release "$(RELEASE)" -cuda "$(CUDA)" -facts nvattach/api/facts
	$(MAKE) generate

# Instrumented for coverage, a fuzz target finds its way; the few runs of continuous integration do without, and
# so without compiling everything once more.
FUZZ_BUILD ?= -fuzz .
fuzz: ## every fuzz target for FUZZTIME (30s)
	@mkdir -p bin/fuzz; bin=$$PWD/bin/fuzz; seen=$$(go env GOCACHE)/fuzz/$$(go list -m); \
	for dir in $$(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n1 dirname | sort -u); do \
	  go test -c $(FUZZ_BUILD) -ldflags '-s -w' -o $$bin/one.test ./$$dir; \
	  for f in $$(cat $$dir/*_test.go | sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\)(.*/\1/p' | sort -u); do \
	    echo "fuzz $$dir $$f"; \
	    case " $(FUZZ_SLOW) " in *" $$f "*) time=$(FUZZTIME_SLOW) ;; *) time=$(FUZZTIME) ;; esac; \
	    (cd $$dir && $$bin/one.test -test.paniconexit0 -test.run '^$$' -test.fuzz "^$$f\$$" -test.fuzztime $$time \
	      -test.fuzzminimizetime 100x -test.fuzzcachedir $$seen/$$dir); \
	  done; \
	done

sweep-probes: ## probes at every function of this machine's libraries and programs: same output, figures by reason (not in CI)
	CGO_ENABLED=0 go test ./nvattach/host -run '^TestSweep$$' -v -timeout 2h -args -sweep

bench: ## the rows of the benchmark table that need no GPU
	go test ./... -run '^$$' -bench . -benchmem

cuda: ## build the CUDA examples (needs nvcc)
	for p in vectoradd processes threads; do nvcc -o bin/$$p examples/cuda/$$p.cu; done

check-gpu: all cuda ## on a machine with a GPU: hold recordings against an independent count
	gcc -O2 -shared -fPIC -o bin/iolog.so ioctl/record/testdata/iolog.c
	python3 bench/gpucheck.py --out bin vectoradd=bin/vectoradd processes=bin/processes threads=bin/threads \
	  "matmul=python3 examples/cuda/matmul.py" "smi=nvidia-smi -L"
	python3 bench/final_counts.py --only none
	python3 bench/both_count.py

# What is lacking is said: make deps-duckdb deps-clickhouse deps-spark, and apt-get for Prometheus and node_exporter.
check-receivers: all ## send metrics, spans, profiles and tables to a collector, Prometheus, DuckDB, ClickHouse and Spark, and ask these (not in CI)
	python3 bench/receivers.py

bench-gpu: all cuda ## the rows that need a GPU: whole programs under nvtrace against untraced, interleaved; what probes cost
	python3 bench/gpu.py
	python3 bench/attach.py

demo: all ## show the main job without a GPU: probes on the simulated one, a recording decoded, a driver client replayed
	bash examples/demo.sh

cross: ## everything builds for arm64 too
	GOOS=linux GOARCH=arm64 CGO_ENABLED=0 go build ./...
	GOOS=linux GOARCH=arm64 go vet ./...

deps-ptxas: $(PTXAS) ## fetch ptxas, the oracle of the PTX tests
$(PTXAS):
	python3 -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-deps --target .cache/ptxas -r ptx/testdata/ptxas.txt
	test -x $@

deps-nvdisasm: $(NVDISASM) ## fetch nvdisasm, the oracle of the tests of machine code
$(NVDISASM):
	python3 -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-deps --target .cache/nvdisasm -r fatbin/sass/testdata/nvdisasm.txt
	test -x $@

# Engines that the test of Parquet's tables asks.
DUCKDB      := .cache/duckdb/duckdb/__init__.py
CLICKHOUSE  := .cache/clickhouse/chdb/__init__.py
SPARK       := .cache/spark/pyspark/__init__.py

deps-duckdb: $(DUCKDB) ## fetch DuckDB, which the test of Parquet's tables asks
$(DUCKDB):
	python3 -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-deps --target .cache/duckdb -r cmd/nvtrace/testdata/duckdb.txt
	test -f $@

deps-clickhouse: $(CLICKHOUSE) ## fetch ClickHouse as a module of Python's, for the same test (180 MB)
$(CLICKHOUSE):
	python3 -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary=:all: --no-deps --target .cache/clickhouse -r cmd/nvtrace/testdata/clickhouse.txt
	test -f $@

deps-spark: $(SPARK) ## fetch Spark, for the same test (460 MB; it needs Java)
$(SPARK):
	python3 -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps --target .cache/spark -r cmd/nvtrace/testdata/spark.txt
	test -f $@

CUDA := .cache/cuda

deps-cuda: $(CUDA)/bin/nvcc ## fetch nvcc and the runtimes of CUDA 13 and 12 from PyPI: for the tests' programs
$(CUDA)/bin/nvcc: nvattach/sim/testdata/deps.sh $(wildcard nvattach/sim/testdata/cuda1?.txt)
	bash $< .cache/cuda .cache/cuda12
	touch $@

testdata-cuda: deps-cuda ## build the CUDA programs of the tests (what has changed)
	bash nvattach/sim/testdata/build.sh .cache/cuda-programs $(CUDA)

check: generate lint test race cross ## what a change must pass
	@test -z "$$(git status --porcelain)" || { echo "the tree is not clean after generate:"; git status --short; git diff | head -50; exit 1; }

deps-chromium: ## install Chromium, which the test of report --html runs (needs root and apt-get)
	command -v chromium >/dev/null || { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends chromium; }

SYSTEM ?= trixie
test-bare: ## make demo and make test on a bare SYSTEM with README's packages: trixie, bookworm, noble (needs root and a mirror)
	.ci/bare $(SYSTEM)

ci: deps-ptxas deps-nvdisasm deps-duckdb testdata-cuda ## what continuous integration runs
	$(MAKE) all
	$(MAKE) deps-chromium || echo "no Chromium: the page of report --html is not tried in a browser" >&2
	require=gcc,g++,python3,ptxas,nvdisasm,replay,nvcc,duckdb; if command -v chromium >/dev/null; then require+=,chromium; fi; \
	NVTRACE_REQUIRE=$$require NVTRACE_PTXAS=$(PTXAS) NVTRACE_NVDISASM=$(NVDISASM) NVTRACE_NVCC=$(CURDIR)/.cache/cuda/bin/nvcc $(MAKE) check
	NVTRACE_REQUIRE=gcc $(MAKE) demo docs
	NVTRACE_PTXAS=$(PTXAS) $(MAKE) fuzz FUZZ_BUILD= FUZZTIME=1000x FUZZTIME_SLOW=100x
	NVTRACE_BARE_FLAGS=-short $(MAKE) test-bare

docs: all ## make the site of docs/ in bin/site, with the reference and the tools as bin/nvtrace has them
	rm -rf bin/site
	go run ./internal/site -nvtrace bin/nvtrace -o bin/site docs

dist: ## build the release in dist/: static binaries, deb and rpm packages, man page, completions, SBOM, checksums
	rm -rf dist
	mkdir -p dist/completion
	$(foreach a,$(ARCHES),CGO_ENABLED=0 GOARCH=$(a) go build $(call nvtrace_flags,$(a)) -o dist/nvtrace-linux-$(a) ./cmd/nvtrace &&) true
	go run ./internal/site -nvtrace dist/nvtrace-linux-$$(go env GOARCH) -o dist/html docs
	go run ./cmd/nvtrace version --man | gzip -n9 > dist/nvtrace.1.gz
	go run ./cmd/nvtrace version --completion bash > dist/completion/nvtrace.bash
	go run ./cmd/nvtrace version --completion zsh > dist/completion/_nvtrace
	go run ./cmd/nvtrace version --completion fish > dist/completion/nvtrace.fish
	for a in $(ARCHES); do \
	  go run ./internal/sbom dist/nvtrace-linux-$$a $(VERSION) > dist/nvtrace-linux-$$a.spdx.json; \
	  cp dist/nvtrace-linux-$$a dist/nvtrace; \
	  for p in deb rpm; do DIST=dist ARCH=$$a VERSION=$(VERSION) go run $(NFPM) package --config packaging/nfpm.yaml --packager $$p --target dist/; done; \
	done
	rm -r dist/nvtrace dist/html
	cd dist && sha256sum nvtrace* completion/* > SHA256SUMS

clean: ## remove what was built
	rm -rf bin dist

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' Makefile | expand -t 14
