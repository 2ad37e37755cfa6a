#!/bin/sh
# PostgreSQL runs this once, when its volume is new: the role that servers and workers connect as. `earmark migrate
# --application-role earmark_app` grants it what they need.
set -eu
psql --username "$POSTGRES_USER" --dbname "$POSTGRES_DB" --set ON_ERROR_STOP=1 <<'SQL'
\getenv password APP_PASSWORD
CREATE ROLE earmark_app LOGIN PASSWORD :'password';
SQL
