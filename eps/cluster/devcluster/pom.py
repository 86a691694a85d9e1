"""Which jars a Hadoop is made of, as a pom of Maven.  Pure."""

from __future__ import annotations

import hashlib
from xml.sax.saxutils import escape

#: Modules of Hadoop.  The poms of servers say that somebody else provides ``hadoop-common``, and that of the
#: ResourceManager says so of the timeline service, without which it does not start: so both are named.
_MODULES = (
    "hadoop-common",
    "hadoop-hdfs",
    "hadoop-hdfs-client",
    "hadoop-yarn-api",
    "hadoop-yarn-common",
    "hadoop-yarn-client",
    "hadoop-yarn-server-common",
    "hadoop-yarn-server-resourcemanager",
    "hadoop-yarn-server-nodemanager",
    "hadoop-yarn-server-web-proxy",
    "hadoop-yarn-server-applicationhistoryservice",
    "hadoop-yarn-server-timelineservice",
)
#: Of a cluster with Kerberos.
_REALM_MODULES = ("hadoop-minikdc",)
_PLUGIN_VERSION = "3.8.1"

#: Without one of these a daemon dies at its start, or a client finds no file system.
NEEDED_CLASSES = (
    "org.apache.hadoop.conf.Configuration",
    "org.apache.hadoop.hdfs.DistributedFileSystem",
    "org.apache.hadoop.hdfs.server.namenode.NameNode",
    "org.apache.hadoop.yarn.client.api.AMRMClient",
    "org.apache.hadoop.yarn.server.nodemanager.NodeManager",
    "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager",
    "org.apache.hadoop.yarn.server.timelineservice.collector.TimelineCollectorManager",
    "org.bouncycastle.jce.provider.BouncyCastleProvider",
    "javax.servlet.Servlet",
)
#: What binds slf4j to a logger: by service since slf4j 2, by class before.
SLF4J_BINDINGS = ("META-INF/services/org.slf4j.spi.SLF4JServiceProvider", "org/slf4j/impl/StaticLoggerBinder.class")


def pom_text(hadoop_version: str, repository: str = "", *, kerberos: bool = False) -> str:
    """Return the pom; ``package`` copies the jars to ``target/lib`` beside it.

    Parameters
    ----------
    hadoop_version : str
    repository : str
        URL of what takes the place of Maven Central; empty: what Maven itself is set to.
    kerberos : bool
        With those of a realm.
    """
    modules = "\n".join(
        f"    <dependency><groupId>org.apache.hadoop</groupId><artifactId>{name}</artifactId>"
        "<version>${hadoop.version}</version></dependency>"
        for name in (*_MODULES, *(_REALM_MODULES if kerberos else ()))
    )
    return f"""\
<?xml version="1.0" encoding="UTF-8"?>
<project xmlns="http://maven.apache.org/POM/4.0.0"
         xmlns:xsi="http://www.w3.org/2001/XMLSchema-instance"
         xsi:schemaLocation="http://maven.apache.org/POM/4.0.0 https://maven.apache.org/xsd/maven-4.0.0.xsd">
  <modelVersion>4.0.0</modelVersion>
  <groupId>eps</groupId>
  <artifactId>devcluster</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <properties><hadoop.version>{escape(hadoop_version)}</hadoop.version></properties>
{_repositories(repository)}\
  <dependencies>
{modules}
    <!-- Hadoop 3.5 moved to jakarta, but some of its classes still name this. -->
    <dependency><groupId>javax.servlet</groupId><artifactId>javax.servlet-api</artifactId><version>4.0.1</version></dependency>
  </dependencies>
  <build>
    <plugins>
      <plugin>
        <groupId>org.apache.maven.plugins</groupId>
        <artifactId>maven-dependency-plugin</artifactId>
        <version>{_PLUGIN_VERSION}</version>
        <executions>
          <execution>
            <id>libs</id>
            <phase>package</phase>
            <goals><goal>copy-dependencies</goal></goals>
            <configuration>
              <outputDirectory>${{project.build.directory}}/lib</outputDirectory>
              <includeScope>runtime</includeScope>
            </configuration>
          </execution>
        </executions>
      </plugin>
    </plugins>
  </build>
</project>
"""


def pom_digest(hadoop_version: str, *, kerberos: bool = False) -> str:
    """Return what tells the jars of one pom from those of another."""
    return hashlib.sha256(pom_text(hadoop_version, kerberos=kerberos).encode()).hexdigest()[:12]


def _repositories(url: str) -> str:
    if not url:
        return ""
    place = f"<id>central</id><url>{escape(url)}</url>"
    return f"""\
  <repositories><repository>{place}</repository></repositories>
  <pluginRepositories><pluginRepository>{place}</pluginRepository></pluginRepositories>
"""
