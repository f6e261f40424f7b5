"""Files in deploy/ can be read, and mean what exists: settings, ports, commands, files."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

from leveret.config import Configuration
from leveret.config.cluster import ClusterSettings
from leveret.config.environment import CONFIG_VARIABLE
from tests.support.commands import check_command

REPOSITORY = Path(__file__).parent.parent.parent
DEPLOY = REPOSITORY / "deploy"
IMAGE_SETTINGS = DEPLOY / "docker" / "leveret.toml"
YAML = sorted([*DEPLOY.rglob("*.yml"), *DEPLOY.rglob("*.yaml")])
JSON = sorted(DEPLOY.rglob("*.json"))
PORTS = {
    name: Configuration.model_fields[name].default
    for name in ("port", "tls_port", "http_port", "prometheus_port")
}


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def config_map():
    return kubernetes("ConfigMap")["leveret"]["data"]["leveret.toml"]


def rendered(directory, kind):
    """All objects of one kind that `kubectl apply -k` would create, by name."""
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    done = subprocess.run(
        ["kubectl", "kustomize", directory], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    objects = [each for each in yaml.safe_load_all(done.stdout) if each["kind"] == kind]
    return {each["metadata"]["name"]: each for each in objects}


def kubernetes(kind):
    """All objects of one kind, by name."""
    found = [
        document
        for path in (DEPLOY / "kubernetes").glob("*.yaml")
        for document in documents(path)
        if document["kind"] == kind
    ]
    return {document["metadata"]["name"]: document for document in found}


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_is_read(path):
    assert documents(path)


@pytest.mark.parametrize("path", JSON, ids=lambda path: path.name)
def test_json_is_read(path):
    assert json.loads(path.read_text())


def test_settings_exist():
    """Every `LEVERET_…` variable, and every line of the ConfigMap."""
    for path in (path for path in DEPLOY.rglob("*") if path.is_file()):
        for name in re.findall(r"\bLEVERET_([A-Z_]+)\b", path.read_text()):
            known = (
                name.lower() in Configuration.model_fields or f"LEVERET_{name}" == CONFIG_VARIABLE
            )
            assert known, (path, name)
    for text in (config_map(), IMAGE_SETTINGS.read_text()):
        Configuration(**tomllib.loads(text))


def test_image_sets_nothing_that_a_mounted_file_could_not_change():
    """Variables beat the file: only where the file and the data are stands in some."""
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    variables = set(re.findall(r"\b(LEVERET_[A-Z_]+)=", text))
    assert variables == {"LEVERET_CONFIG", "LEVERET_DATA_DIR"}
    assert re.search(r"LEVERET_CONFIG=(\S+)", text)[1] == "/etc/leveret/leveret.toml"
    assert "COPY deploy/docker/leveret.toml /etc/leveret/leveret.toml" in text


def test_containers_answer_on_every_address():
    """Whose loopback is nobody's: probes and published ports come from elsewhere."""
    for text in (config_map(), IMAGE_SETTINGS.read_text()):
        settings = tomllib.loads(text)
        hosts = {settings[name] for name in ("host", "http_host", "prometheus_host")}
        assert hosts == {"0.0.0.0"}


def test_steps_make_an_administrator_before_anything_else():
    text = (DEPLOY / "README.md").read_text()
    for section in re.split(r"^## ", text, flags=re.MULTILINE)[1:5]:
        first = section[section.index("user add") :].splitlines()[0]
        assert "--tag administrator" in first, section


def test_failing_starts_are_given_up():
    unit = (DEPLOY / "systemd" / "leveret.service").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    assert int(values["StartLimitBurst"]) * float(values["RestartSec"].removesuffix("s")) < 600
    assert values["StartLimitIntervalSec"] == "10min"


def test_a_start_without_zookeeper_is_neither_killed_nor_given_up():
    """A node of a cluster waits by default for as long as its ensemble takes to start."""
    unit = (DEPLOY / "systemd" / "leveret.service").read_text()
    values = dict(re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE))
    waits = ClusterSettings.model_fields["zookeeper_connect_timeout_ms"].default / 1000
    assert waits < 60 * int(values["TimeoutStartSec"].removesuffix("min"))
    attempt = waits + float(values["RestartSec"].removesuffix("s"))
    assert int(values["StartLimitBurst"]) * attempt > 600  # which is the interval


def test_image_that_was_loaded_into_the_machine_is_used():
    (stateful,) = kubernetes("StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    assert container["imagePullPolicy"] == "IfNotPresent"


def test_stall_of_minutes_is_no_restart():
    (stateful,) = kubernetes("StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    probe = container["livenessProbe"]
    assert probe["periodSeconds"] * probe["failureThreshold"] >= 600


def test_management_is_not_open_to_the_whole_cluster():
    (policy,) = kubernetes("NetworkPolicy").values()
    for rule in policy["spec"]["ingress"]:
        if "from" not in rule:
            assert [port["port"] for port in rule["ports"]] == ["amqp"]


def commands_in(path):
    """Command lines of ours: in code blocks of Markdown, in unit files, in alerts."""
    text = path.read_text()
    found = re.findall(r"^\s*(?:\$ |sudo |# *)?(?:\S*/)?(leveret [a-z].*)$", text, re.MULTILINE)
    found += re.findall(r"`(leveret [a-z][^`]*)`", text)
    found += re.findall(r"\bexec .*?\bleveret (leveret [^`\n]*)", text)
    found += [match.replace("\n", " ") for match in re.findall(r"ExecStart=\S*/(leveret .*)", text)]
    return found


OPERATIONS = REPOSITORY / "docs" / "operations.md"
TEXTS = sorted(
    path for path in DEPLOY.rglob("*") if path.suffix in {".md", ".service", ".yml", ".yaml"}
)
TEXTS.append(OPERATIONS)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_commands_exist(path):
    for line in commands_in(path):
        check_command(line)


def test_commands_are_found_at_all():
    assert len([line for path in TEXTS for line in commands_in(path)]) > 5


def test_unit_is_valid(tmp_path):
    """But for the path of the command, which is not there yet."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = (DEPLOY / "systemd" / "leveret.service").read_text()
    checked = tmp_path / "leveret.service"
    checked.write_text(unit.replace("/opt/leveret/bin/leveret", "/bin/true"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", checked],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_container_serves_on_the_ports_it_exposes():
    text = (DEPLOY / "docker" / "Dockerfile").read_text()
    exposed = re.search(r"^EXPOSE (.*)$", text, re.MULTILINE)[1].split()
    assert sorted(map(int, exposed)) == sorted(PORTS.values())
    check_command(
        "leveret " + " ".join(json.loads(re.search(r"CMD (\[\"leveret.*\])", text)[1])[1:])
    )
    for source in re.findall(r"^COPY ((?:[^-].*))$", text, re.MULTILINE):
        for name in source.split()[:-1]:
            assert (REPOSITORY / name).exists(), name


@pytest.mark.parametrize("name", ["docker-compose.yml", "docker-compose.cluster.yml"])
def test_compose_mounts_what_is_there(name):
    directory = DEPLOY / "docker"
    (compose,) = documents(directory / name)
    for service_name, service in compose["services"].items():
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:"), (service_name, port)
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            known = source in compose["volumes"] or (directory / source).exists()
            assert known, (service_name, source)
        if "build" in service:
            build = service["build"]
            assert (directory / build["context"] / build["dockerfile"]).exists()
        assert set(service.get("depends_on", ())) <= set(compose["services"])
        assert set(service.get("networks", ())) <= set(compose.get("networks", ()))
        assert set(service.get("secrets", ())) <= set(compose.get("secrets", ()))
        if service_name.startswith("leveret"):
            assert service["stop_grace_period"] == "2m"


def test_kubernetes_objects_fit_together():
    (stateful,) = kubernetes("StatefulSet").values()
    template = stateful["spec"]["template"]
    labels = template["metadata"]["labels"]
    (container,) = template["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports == {
        "amqp": PORTS["port"],
        "http": PORTS["http_port"],
        "metrics": PORTS["prometheus_port"],
    }
    services = kubernetes("Service")
    assert stateful["spec"]["serviceName"] in services
    selectors = [service["spec"]["selector"] for service in services.values()]
    for kind, key in (("PodDisruptionBudget", "selector"), ("NetworkPolicy", "podSelector")):
        selectors += [each["spec"][key]["matchLabels"] for each in kubernetes(kind).values()]
    selectors.append(stateful["spec"]["selector"]["matchLabels"])
    assert all(selector.items() <= labels.items() for selector in selectors)
    for service in services.values():
        assert all(port["targetPort"] in ports for port in service["spec"]["ports"])
    mounts = {mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"] for volume in template["spec"]["volumes"]}
    volumes |= {claim["metadata"]["name"] for claim in stateful["spec"]["volumeClaimTemplates"]}
    assert mounts == volumes
    check_command("leveret " + " ".join(container["args"]))
    (kustomization,) = documents(DEPLOY / "kubernetes" / "kustomization.yaml")
    present = {path.name for path in (DEPLOY / "kubernetes").iterdir()} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == present


def test_probes_ask_what_is_answered_without_a_password():
    (stateful,) = kubernetes("StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert path in {
            "/api/health/checks/is-in-service",
            "/api/health/checks/ready-to-serve-clients",
        }


def test_tls_of_amqp_is_the_node_s():
    directory = DEPLOY / "kubernetes-tls"
    (stateful,) = rendered(directory, "StatefulSet").values()
    template = stateful["spec"]["template"]["spec"]
    (container,) = template["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["amqps"] == PORTS["tls_port"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    (volume,) = [volume for volume in template["volumes"] if volume["name"] == "tls"]
    files = {f"{mounts['tls']}/{name}" for name in ("tls.crt", "tls.key")}
    variables = {each["name"]: each["value"] for each in container["env"]}
    assert files == {
        variables["LEVERET_TLS_CERTIFICATE_FILE"],
        variables["LEVERET_TLS_KEY_FILE"],
    }
    text = (DEPLOY / "README.md").read_text()
    assert f"create secret tls {volume['secret']['secretName']} " in text
    served = {port["name"] for port in rendered(directory, "Service")["leveret"]["spec"]["ports"]}
    assert {"amqp", "amqps", "http"} == served
    (policy,) = rendered(directory, "NetworkPolicy").values()
    for rule in policy["spec"]["ingress"]:
        if "from" not in rule:
            assert [port["port"] for port in rule["ports"]] == ["amqps"]
    reachable = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert reachable == set(ports)


def test_ingress_leads_to_the_web_ui_with_tls():
    directory = DEPLOY / "kubernetes-tls"
    (ingress,) = rendered(directory, "Ingress").values()
    (rule,) = ingress["spec"]["rules"]
    (tls,) = ingress["spec"]["tls"]
    assert tls["hosts"] == [rule["host"]]
    assert f"create secret tls {tls['secretName']} " in (DEPLOY / "README.md").read_text()
    (path,) = rule["http"]["paths"]
    service = rendered(directory, "Service")[path["backend"]["service"]["name"]]
    ports = {port["name"]: port["port"] for port in service["spec"]["ports"]}
    assert ports[path["backend"]["service"]["port"]["name"]] == PORTS["http_port"]
    (policy,) = kubernetes("NetworkPolicy").values()
    assert any(
        "ingress-nginx" in json.dumps(rule.get("from")) and rule["ports"] == [{"port": "http"}]
        for rule in policy["spec"]["ingress"]
    )


# -- clusters


def composed():
    """Services of the cluster's compose file, by name."""
    (compose,) = documents(DEPLOY / "docker" / "docker-compose.cluster.yml")
    return compose, compose["services"]


def is_node(name):
    return re.fullmatch(r"leveret-\d", name) is not None


def settings_of(variables, file):
    """Check the settings of a node, as its variables and its file state them."""
    given = {
        name.removeprefix("LEVERET_").lower(): value
        for name, value in variables.items()
        if name.startswith("LEVERET_")
    }
    return Configuration(**{**tomllib.loads(file), **given})


def test_composed_nodes_are_one_cluster():
    compose, services = composed()
    nodes = {name: service for name, service in services.items() if is_node(name)}
    assert len(nodes) == 3
    found = [
        settings_of(each["environment"], IMAGE_SETTINGS.read_text()) for each in nodes.values()
    ]
    assert len({each.node_id for each in found}) == len({each.rack for each in found}) == 3
    assert [each.advertise for each in found] == list(nodes)
    (address,) = {each.cluster for each in found}
    ensemble = [name for name in services if name.startswith("zookeeper")]
    assert address == ",".join(f"{name}:2181" for name in ensemble) + "/leveret"
    mounted = {f"/run/secrets/{name}" for name in compose["secrets"]}
    for each in found:
        named = {str(each.cluster_secret_file), str(each.zookeeper_credentials_file)}
        assert named == mounted
    for each in nodes.values():
        assert {f"/run/secrets/{name}" for name in each["secrets"]} == mounted
        # All of them end before ZooKeeper does, and begin after it answers.
        assert each["depends_on"] == {name: {"condition": "service_healthy"} for name in ensemble}
    assert all("healthcheck" in services[name] for name in ensemble)
    ignored = (REPOSITORY / ".gitignore").read_text().splitlines()
    for secret in compose["secrets"].values():
        assert f"/deploy/docker/{Path(secret['file']).parent}/" in ignored


def test_composed_ensemble_knows_its_members():
    _, services = composed()
    members = {name: each for name, each in services.items() if name.startswith("zookeeper")}
    numbers = [each["environment"]["ZOO_MY_ID"] for each in members.values()]
    listed = " ".join(
        f"server.{number}={name}:2888:3888;2181"
        for number, name in zip(numbers, members, strict=True)
    )
    assert {each["environment"]["ZOO_SERVERS"] for each in members.values()} == {listed}


def test_volumes_of_a_cluster_are_of_one_service_each():
    compose, services = composed()
    used = [
        volume.split(":")[0]
        for service in services.values()
        for volume in service["volumes"]
        if not volume.startswith(".")
    ]
    assert sorted(used) == sorted(compose["volumes"])


def test_links_and_zookeeper_are_out_of_reach_of_clients():
    compose, services = composed()
    for name, service in services.items():
        if name in {"proxy", "prometheus"}:
            assert service["networks"] == ["clients"]
        else:
            assert is_node(name) or service["networks"] == ["coordination"]
    assert compose["networks"]["coordination"] == compose["networks"]["links"] == {"internal": True}


def test_proxy_leads_to_all_nodes():
    _, services = composed()
    text = (DEPLOY / "docker" / "cluster" / "haproxy.cfg").read_text()
    nodes = sorted(name for name in services if is_node(name))
    servers = re.findall(r"^    server (\S+) (\S+):(\d+) check(?: port (\d+))?", text, re.MULTILINE)
    for port in (PORTS["port"], PORTS["http_port"]):
        of_port = [each for each in servers if int(each[2]) == port]
        assert [name for name, *_ in of_port] == [host for _, host, *_ in of_port] == nodes
        assert {int(check or port) for *_, check in of_port} == {PORTS["http_port"]}
    bound = {int(port) for port in re.findall(r"bind :(\d+)", text)}
    published = {int(port.rpartition(":")[2]) for port in services["proxy"]["ports"]}
    assert bound == published == {PORTS["port"], PORTS["http_port"]}
    asked = set(re.findall(r"http-check send meth GET uri (\S+)", text))
    assert asked == {"/api/health/checks/ready-to-serve-clients"}


def test_prometheus_of_a_cluster_asks_all_nodes_the_same():
    _, services = composed()
    (cluster,) = documents(DEPLOY / "docker" / "cluster" / "prometheus.yml")
    (single,) = documents(DEPLOY / "prometheus" / "prometheus.yml")
    targets = [f"{name}:{PORTS['prometheus_port']}" for name in services if is_node(name)]
    for config in single["scrape_configs"]:
        config["static_configs"] = [{"targets": targets}]
    assert cluster == single
    mounted = " ".join(services["prometheus"]["volumes"])
    for rules in cluster["rule_files"]:
        assert f"../prometheus/{rules}:/etc/prometheus/{rules}" in mounted


KUBERNETES_CLUSTER = DEPLOY / "kubernetes-cluster"


def clustered_container():
    (stateful,) = rendered(KUBERNETES_CLUSTER, "StatefulSet").values()
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    return stateful["spec"], container


def test_kubernetes_nodes_are_one_cluster():
    stateful, container = clustered_container()
    variables = {each["name"]: each for each in container["env"]}
    path = variables["LEVERET_NODE_ID"]["valueFrom"]["fieldRef"]["fieldPath"]
    assert path == "metadata.labels['apps.kubernetes.io/pod-index']"
    names = list(variables)
    pod = {"POD_NAME": "leveret-2", "POD_NAMESPACE": "leveret"}
    advertise = variables["LEVERET_ADVERTISE"]["value"]
    for name, value in pod.items():  # of those before it only
        assert names.index(name) < names.index("LEVERET_ADVERTISE")
        advertise = advertise.replace(f"$({name})", value)
    assert advertise == f"leveret-2.{stateful['serviceName']}.leveret.svc"
    given = {name: each["value"] for name, each in variables.items() if "value" in each}
    given |= {"LEVERET_NODE_ID": "2", "LEVERET_ADVERTISE": advertise}
    settings = settings_of(given, config_map())
    mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
    text = (DEPLOY / "README.md").read_text()
    volumes = {each["name"]: each for each in stateful["template"]["spec"]["volumes"]}
    for volume, file in (
        ("cluster", settings.cluster_secret_file),
        ("zookeeper", settings.zookeeper_credentials_file),
    ):
        assert file.parent == mounts[volume]
        secret = volumes[volume]["secret"]
        assert secret["defaultMode"] == 0o440
        assert re.search(
            rf"create secret generic {secret['secretName']} --from-\w+={file.name}\b", text
        )


def test_kubernetes_nodes_reach_each_other_and_nobody_else_does():
    stateful, container = clustered_container()
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["links"] == Configuration.model_fields["link_port"].default
    services = rendered(KUBERNETES_CLUSTER, "Service")
    headless = services[stateful["serviceName"]]["spec"]
    assert headless["publishNotReadyAddresses"]
    assert "links" in {port["name"] for port in headless["ports"]}
    (policy,) = rendered(KUBERNETES_CLUSTER, "NetworkPolicy").values()
    (rule,) = [each for each in policy["spec"]["ingress"] if each["ports"] == [{"port": "links"}]]
    assert rule["from"] == [{"podSelector": stateful["selector"]}]
    assert {port["port"] for each in policy["spec"]["ingress"] for port in each["ports"]} == set(
        ports
    )


def test_kubernetes_takes_one_node_after_the_other():
    stateful, container = clustered_container()
    assert (stateful["replicas"], stateful["podManagementPolicy"]) == (3, "Parallel")
    assert stateful["minReadySeconds"] >= 30
    (budget,) = rendered(KUBERNETES_CLUSTER, "PodDisruptionBudget").values()
    assert budget["spec"]["maxUnavailable"] == 1
    assert "minAvailable" not in budget["spec"]
    template = stateful["template"]["spec"]
    apart = template["affinity"]["podAntiAffinity"]
    (rule,) = apart["requiredDuringSchedulingIgnoredDuringExecution"]
    assert rule["labelSelector"] == stateful["selector"]
    shell, option, script = container["lifecycle"]["preStop"]["exec"]["command"]
    assert (shell, option) == ("sh", "-c")
    waits, otherwise = script.split(" || ")
    check_command(waits)
    assert otherwise == "true"
    seconds = int(waits.rpartition(" ")[2])
    assert template["terminationGracePeriodSeconds"] >= seconds + 120
    (before,) = kubernetes("StatefulSet").values()
    assert before["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] == 120


def anchors_of(text):
    """The anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("path", [OPERATIONS, DEPLOY / "README.md"], ids=lambda path: path.name)
def test_links_lead_somewhere(path):
    for target in re.findall(r"\]\((?!http)([^)]+)\)", path.read_text()):
        name, _, anchor = target.partition("#")
        page = path.parent / name if name else path
        assert page.exists(), target
        if anchor:
            assert anchor in anchors_of(page.read_text()), target


def test_alerts_that_are_named_exist():
    rules = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    for name in re.findall(r"`(Leveret[A-Z]\w+)`", OPERATIONS.read_text()):
        assert f"alert: {name}\n" in rules
    assert "name: leveret-cluster\n" in rules
