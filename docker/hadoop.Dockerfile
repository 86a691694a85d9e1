# A small Hadoop: jars from Maven Central, a Java runtime, and EPS, which YARN's containers run.  The command selects the
# daemon: namenode, datanode, resourcemanager or nodemanager (docker/hadoop.sh).
#
#   docker build -f docker/hadoop.Dockerfile -t eps-hadoop .
ARG BASE=eps

FROM ${BASE} AS build
ARG HADOOP_VERSION=3.5.0
USER root
RUN mkdir -p /usr/share/man/man1 && apt-get update -qq && \
    apt-get install -y -qq --no-install-recommends default-jdk-headless
# A runtime a quarter the size of a JDK, with the modules that Hadoop loads and a class archive, which speeds up starts.
RUN jlink --output /opt/java --compress=2 --no-header-files --no-man-pages --add-modules \
    java.se,jdk.crypto.ec,jdk.management,jdk.naming.dns,jdk.net,jdk.security.auth,jdk.security.jgss,jdk.unsupported,jdk.zipfs && \
    /opt/java/bin/java -Xshare:dump
# The same jars as of eps devcluster.
RUN python3 -c "import pathlib, sys; from eps.cluster.devcluster.jars import class_path_of_jars, find_java; \
    class_path_of_jars('${HADOOP_VERSION}', pathlib.Path('/tmp/jars'), find_java(), \
                       lambda text: print(text, file=sys.stderr))" && \
    mkdir -p /opt/hadoop/web/webapps/hdfs /opt/hadoop/web/webapps/datanode && mv /tmp/jars/hadoop/*/lib /opt/hadoop/lib

FROM ${BASE}
LABEL org.opencontainers.image.title="EPS with a small Hadoop" \
      org.opencontainers.image.description="NameNode, DataNode, ResourceManager or NodeManager, by its command"
USER root
COPY --from=build /opt/java /opt/java
COPY --from=build /opt/hadoop /opt/hadoop
COPY docker/conf /etc/hadoop
COPY docker/hadoop.sh /usr/local/bin/hadoop.sh
RUN ls /opt/hadoop/lib/*.jar | tr '\n' ':' | sed 's/:$//' > /etc/hadoop/eps-classpath.txt && \
    mkdir /data /home/eps/.eps && chown eps /data /home/eps/.eps
ENV HADOOP_CONF_DIR=/etc/hadoop JAVA_HOME=/opt/java PATH=$PATH:/opt/java/bin
USER eps
VOLUME /data
# A daemon is healthy if its master answers and lists it; other commands always are.  The start may take minutes.
HEALTHCHECK --interval=5s --timeout=20s --start-period=600s --retries=3 CMD ["hadoop.sh", "healthy"]
ENTRYPOINT ["hadoop.sh"]
CMD ["help"]
