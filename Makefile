# The commands of madlib_mop; `make` or `make help` lists them. They run the scripts in make/.
# PG_CONFIG=/path/to/pg_config chooses a PostgreSQL (15 or newer), PYTHON=/path/to/python3 the Python that the library's
# virtual environment uses, MOP_STATE=/path the state directory.

.DEFAULT_GOAL := help
.PHONY: help setup demo test browser coverage server stop psql report watch dash dsn doctor bench bench-full bench-check lint types docs-tables site install uninstall dist release docker clean
MAKEFLAGS += --no-print-directory
ifeq ($(origin PYTHON),command line) # not from the environment: other programs' builds read a PYTHON there
export MOP_PYTHON := $(PYTHON)
endif
BENCH = make/server.sh test demo && python=$$(make/bench.sh) && \
	MADLIB_MOP_DSN=$$(make/cluster.sh dsn) "$$python" benchmarks/run.py

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 18

setup: ## install missing parts: packages, the library's virtual environment, the PostgreSQL tree
	@make/setup.sh test demo

demo: ## train sixteen networks on handwritten digits in a private server, and show the leaderboard
	@make/demo.sh

test: ## set up, and run the fast tests; ARGS="-k word" selects some of them
	@make/test.sh $(ARGS)

browser: ## set up Chromium, and run the tests of pages in it; ARGS as for test
	@make/browser.sh $(ARGS)

coverage: ## run the tests and report which lines they ran: coverage/index.html; ARGS as for test
	@make/coverage.sh $(ARGS)

server: ## start the private server, with the extension in database madlib_mop
	@make/server.sh

stop: ## stop the private server
	@make/cluster.sh stop

psql: ## open psql on the private server
	@make/cluster.sh dsn >/dev/null && make/cluster.sh start && \
	    "$$(make/cluster.sh bindir)/psql" "$$(make/cluster.sh dsn)"

report: ## write a run of the private server as one HTML file: make report RUN=1
	@make/look.sh report "$(RUN)" $(ARGS)

watch: ## show a run of the private server in the terminal while it trains: make watch RUN=1
	@make/look.sh watch "$(RUN)" $(ARGS)

dash: ## serve the runs of the private server as a page for your browser, until Ctrl-C
	@make/look.sh dash $(ARGS)

dsn: ## print the libpq URI of the private server, for its owner (make -s dsn)
	@make/cluster.sh dsn

doctor: ## check the private server's installation and print how to fix problems
	@make/python.sh -I -m madlib_mop.cli doctor

bench: ## run the benchmarks in their short form and print their tables
	@$(BENCH) $(ARGS)

bench-full: ## compare all ways of training at full size, with three seeds (hours)
	@$(BENCH) --full $(ARGS)

bench-check: ## fail if a ratio is above its limit, or in three runs over 15 % worse than recorded for this processor
	@$(BENCH) --check $(ARGS)

lint: ## check the style of the Python files
	@make/setup.sh lint && make/python.sh -m ruff check .

types: ## check the types of the library
	@make/setup.sh types && make/python.sh -m mypy

docs-tables: ## write the manual's tables of arguments, schedules and search methods anew
	@make/python.sh make/docs_tables.py

site: ## build the manual as a web site in site/
	@make/site.sh

install: ## install into an existing server: make install PG_CONFIG=/path/to/pg_config
	@make/install.sh install

uninstall: ## remove the files of make install from an existing server
	@make/install.sh uninstall

dist: ## make a source archive of the last commit in dist/
	@make/dist.sh

release: ## keep this version's SQL and databases of it, for the tests of updates from it
	@make/setup.sh test && make/python.sh -I make/build_extension.py --keep
	@make/python.sh -m pytest -q tests/upgrade/make_record.py

docker: ## generate the containers' passwords and build their image (docker/README.md)
	@make/docker.sh image

clean: ## stop the private server and remove it, its data and everything else that was built
	@make/clean.sh
